"""Stochastic gradient descent."""

from __future__ import annotations

import torch
from torch.optim.optimizer import ParamsT

from scalewise.optimizers.checks import check_rates, use_fused
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
    return torch.optim.SGD(
        params,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        fused=use_fused(fused, device_kind),
    )
