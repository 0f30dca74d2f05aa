"""How many samples a batch holds, whatever a user's loader makes of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor


def count_samples(batch: Any) -> int:
    """Samples in a batch: the length of its first tensor. 0 for a batch without any."""
    shape = first_shape(batch)
    if shape is None:
        return 0
    return shape[0] if shape else 1


def first_shape(batch: Any) -> tuple[int, ...] | None:
    """Shape of the first tensor in a batch that is not empty; None without any."""
    if isinstance(batch, Tensor):
        return tuple(batch.shape) if batch.ndim == 0 or len(batch) else None
    parts: Any = ()
    if isinstance(batch, Mapping):
        parts = batch.values()
    elif isinstance(batch, Sequence) and not isinstance(batch, str):
        parts = batch
    return next((shape for part in parts if (shape := first_shape(part)) is not None), None)
