"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from scalewise.optimizers.checks import any_dtensor, check_rates, use_fused
from scalewise.ranges import require


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
