"""In which number format a cell computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PrecisionConfig:
    """The config group ``precision``."""

    name: str
    lightning: Literal["32-true", "bf16-mixed", "16-mixed"]
    """Lightning's name for it."""
    matmul_tf32: bool
    """Let fp32 matrix products run on tensor cores with a 10-bit mantissa."""


def apply_precision(config: PrecisionConfig) -> None:
    """Set the process-wide switches that Lightning leaves alone."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = config.matmul_tf32
    torch.backends.cudnn.allow_tf32 = config.matmul_tf32
