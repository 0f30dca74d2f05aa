"""Builders of torch's own optimizers, and what the arguments of all have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from scalewise.config import require, require_at_least

_BETAS = [0.9, 0.999]


def adam(
    params: ParamsT,
    device_kind: str,
    lr: float = 1e-3,
    betas: list[float] = _BETAS,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    fused: bool | None = None,
) -> torch.optim.Adam:
    """Torch's Adam: weight decay is added to the gradient. Two buffers, three in AMSGrad."""
    check_rates(lr, weight_decay)
    require("eps", eps, eps > 0, "above 0")
    settings = (lr, checked_betas(betas), eps, weight_decay, amsgrad)
    return torch.optim.Adam(params, *settings, fused=use_fused(fused, device_kind))


def adamw(
    params: ParamsT,
    device_kind: str,
    lr: float = 1e-3,
    betas: list[float] = _BETAS,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    amsgrad: bool = False,
    fused: bool | None = None,
) -> torch.optim.AdamW:
    """Torch's AdamW: weight decay apart from the gradient. Two buffers, three in AMSGrad."""
    check_rates(lr, weight_decay)
    require("eps", eps, eps > 0, "above 0")
    settings = (lr, checked_betas(betas), eps, weight_decay, amsgrad)
    return torch.optim.AdamW(params, *settings, fused=use_fused(fused, device_kind))


def sgd(
    params: ParamsT,
    device_kind: str,
    lr: float = 0.01,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    fused: bool | None = None,
) -> torch.optim.SGD:
    """Torch's SGD; one buffer of the size of the parameters where there is momentum."""
    check_rates(lr, weight_decay)
    require("momentum", momentum, 0 <= momentum < 1, "at least 0 and below 1")
    held: list[Any] = list(params)
    return torch.optim.SGD(
        held,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        # Torch's fused SGD has no rule for DTensors, its Adam has.
        fused=use_fused(fused, device_kind) and not (fused is None and any_dtensor(held)),
    )


def adafactor(
    params: ParamsT,
    device_kind: str,
    lr: float = 1e-2,
    beta2_decay: float = -0.8,
    weight_decay: float = 0.0,
) -> torch.optim.Adafactor:
    """Torch's Adafactor (Shazeer and Stern, 2018).

    A matrix of r rows and c columns takes r + c numbers of state instead of Adam's 2 r c. There is
    no fused version, on any device.
    """
    check_rates(lr, weight_decay)
    require("beta2_decay", beta2_decay, beta2_decay <= 0, "at most 0")
    return torch.optim.Adafactor(params, lr=lr, beta2_decay=beta2_decay, weight_decay=weight_decay)


def check_rates(lr: float, weight_decay: float) -> None:
    """A learning rate above 0 and a weight decay of at least 0."""
    require("lr", lr, lr > 0, "above 0")
    require_at_least(0, weight_decay=weight_decay)


def checked_betas(betas: list[float]) -> tuple[float, float]:
    """Two decay rates, each at least 0 and below 1."""
    holds = len(betas) == 2 and all(0 <= beta < 1 for beta in betas)
    require("betas", betas, holds, "two numbers of at least 0 and below 1")
    return betas[0], betas[1]


def use_fused(fused: bool | None, device_kind: str) -> bool:
    """Whether to update all parameters in one kernel: as asked, else wherever torch has one."""
    return device_kind in ("cuda", "cpu") if fused is None else fused


def any_dtensor(params: Sequence[Any]) -> bool:
    """Whether a parameter is one of torch's DTensors; with a name or without."""
    bare = (item[1] if isinstance(item, tuple) else item for item in params)
    return any(hasattr(parameter, "placements") for parameter in bare)
