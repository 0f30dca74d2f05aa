"""Adam and its relatives."""

from __future__ import annotations

import torch
from torch.optim.optimizer import ParamsT

from scalewise.optimizers.checks import check_rates, checked_betas, use_fused
from scalewise.ranges import require

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
    return torch.optim.Adam(
        params,
        lr=lr,
        betas=checked_betas(betas),
        eps=eps,
        weight_decay=weight_decay,
        amsgrad=amsgrad,
        fused=use_fused(fused, device_kind),
    )


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
    return torch.optim.AdamW(
        params,
        lr=lr,
        betas=checked_betas(betas),
        eps=eps,
        weight_decay=weight_decay,
        amsgrad=amsgrad,
        fused=use_fused(fused, device_kind),
    )
