"""How many samples a batch holds, whatever a user's loader makes of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor


def count_samples(batch: Any) -> int:
    """Samples in a batch: the length of its first tensor. 0 for a batch without any."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else 1
    if isinstance(batch, Mapping):
        return next((n for n in map(count_samples, batch.values()) if n), 0)
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return next((n for n in map(count_samples, batch) if n), 0)
    return 0
