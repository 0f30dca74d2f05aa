"""Adafactor: second moments kept as rows and columns."""

from __future__ import annotations

import torch
from torch.optim.optimizer import ParamsT

from scalewise.optimizers.checks import check_rates
from scalewise.ranges import require


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
