"""The evidence of a search for the largest batch that fits: ``find_batch.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class BatchTrial:
    """One batch size, tried on all ranks at once."""

    per_device_batch_size: int
    outcome: Literal["fits", "oom"]
    ranks_out_of_memory: tuple[int, ...]
    peak_allocated_mib: float | None
    """Of the rank that needed most; None on a CPU host, and where it did not fit."""
    step_time_ms: float | None
    """Of the slowest rank, without communication; None where it did not fit."""


@dataclass(frozen=True)
class BatchSearchRecord:
    """What was found, and every trial that led there."""

    per_device_batch_size: int
    """The largest that fits, less the margin: what to use."""
    global_batch_size: int
    largest_that_fits: int
    """Per device, before the margin."""
    limited_by: Literal["memory", "max_batch", "data"]
    """What stopped the search."""
    margin: float
    world_size: int
    device: str
    trials: tuple[BatchTrial, ...]
    config: Mapping[str, Any]
    """The resolved configuration, as typed."""
