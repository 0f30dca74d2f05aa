"""What the optimizers' arguments have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scalewise.ranges import require


def check_rates(lr: float, weight_decay: float) -> None:
    """A learning rate above 0 and a weight decay of at least 0."""
    require("lr", lr, lr > 0, "above 0")
    require("weight_decay", weight_decay, weight_decay >= 0, "at least 0")


def checked_betas(betas: list[float]) -> tuple[float, float]:
    """Two decay rates, each at least 0 and below 1."""
    holds = len(betas) == 2 and all(0 <= beta < 1 for beta in betas)
    require("betas", betas, holds, "two numbers of at least 0 and below 1")
    return betas[0], betas[1]


def use_fused(fused: bool | None, device_kind: str) -> bool:
    """Whether to update all parameters in one kernel: as asked, else wherever torch has one."""
    return device_kind in ("cuda", "cpu") if fused is None else fused


def any_dtensor(params: Sequence[Any]) -> bool:
    """Whether a parameter is one of torch's DTensors, in any of the forms optimizers take."""
    for item in params:
        inner = item["params"] if isinstance(item, dict) else [item]
        for one in inner:
            parameter = one[1] if isinstance(one, tuple) else one
            if hasattr(parameter, "placements"):
                return True
    return False
