"""Builders of torch's own optimizers.

Where torch has a kernel that updates all parameters at once, it is used unless ``fused=false``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import Field, NonNegativeFloat, NonPositiveFloat, PositiveFloat
from torch.optim.optimizer import ParamsT

from scalewise.config import BelowOne

_BETAS = [0.9, 0.999]
Betas = Annotated[list[BelowOne], Field(min_length=2, max_length=2)]


def adam(
    params: ParamsT,
    lr: PositiveFloat = 1e-3,
    betas: Betas = _BETAS,
    eps: PositiveFloat = 1e-8,
    weight_decay: NonNegativeFloat = 0.0,
    amsgrad: bool = False,
    fused: bool | None = None,
) -> torch.optim.Adam:
    """Torch's Adam: weight decay is added to the gradient. Two buffers, three in AMSGrad."""
    settings = (lr, (betas[0], betas[1]), eps, weight_decay, amsgrad)
    return torch.optim.Adam(params, *settings, fused=fused is not False)


def adamw(
    params: ParamsT,
    lr: PositiveFloat = 1e-3,
    betas: Betas = _BETAS,
    eps: PositiveFloat = 1e-8,
    weight_decay: NonNegativeFloat = 0.01,
    amsgrad: bool = False,
    fused: bool | None = None,
) -> torch.optim.AdamW:
    """Torch's AdamW: weight decay apart from the gradient. Two buffers, three in AMSGrad."""
    settings = (lr, (betas[0], betas[1]), eps, weight_decay, amsgrad)
    return torch.optim.AdamW(params, *settings, fused=fused is not False)


def sgd(
    params: ParamsT,
    lr: PositiveFloat = 0.01,
    momentum: BelowOne = 0.9,
    weight_decay: NonNegativeFloat = 0.0,
    fused: bool | None = None,
) -> torch.optim.SGD:
    """Torch's SGD; one buffer of the size of the parameters where there is momentum."""
    held: list[Any] = list(params)
    return torch.optim.SGD(
        held,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        # Torch's fused SGD has no rule for DTensors, its Adam has.
        fused=not any_dtensor(held) if fused is None else fused,
    )


def adafactor(
    params: ParamsT,
    lr: PositiveFloat = 1e-2,
    beta2_decay: NonPositiveFloat = -0.8,
    weight_decay: NonNegativeFloat = 0.0,
) -> torch.optim.Adafactor:
    """Torch's Adafactor (Shazeer and Stern, 2018).

    A matrix of r rows and c columns takes r + c numbers of state instead of Adam's 2 r c. There is
    no fused version, on any device.
    """
    return torch.optim.Adafactor(params, lr=lr, beta2_decay=beta2_decay, weight_decay=weight_decay)


def any_dtensor(params: Sequence[Any]) -> bool:
    """Whether a parameter is one of torch's DTensors; with a name or without."""
    bare = (item[1] if isinstance(item, tuple) else item for item in params)
    return any(hasattr(parameter, "placements") for parameter in bare)
