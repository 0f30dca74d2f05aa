"""The evidence of a search for the largest batch that fits: ``find_batch.json``.

It lies in the folder of the search, and in that of every cell that was trained with what it found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scalewise.records.files import load_json, save_json

NAME = "find_batch.json"


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
    peak_rss_mib: float | None = None
    """Peak resident set of the process that needed most, on a CPU host; None on a GPU, where it
    did not fit, and where the kernel does not tell."""


@dataclass(frozen=True)
class BatchSearchRecord:
    """What was found, and every trial that led there."""

    per_device_batch_size: int
    """The largest that fits, less the margin: what to use."""
    global_batch_size: int
    """Of all devices in one batch, gradients not accumulated."""
    largest_that_fits: int
    """Per device, before the margin."""
    limited_by: Literal["memory", "max_batch", "data"]
    """What stopped the search."""
    margin: float
    world_size: int
    device: str
    trials: tuple[BatchTrial, ...]
    config: Mapping[str, Any]
    """The resolved configuration of the search."""
    limit_mib: float | None = None
    """Memory that a rank could take: its GPU's or the cap on it, on a CPU host its share of what
    the host had free. None in records older than this entry."""

    def batch_size(self, scaling: str) -> int:
        """What ``batch_size`` means it with ``scaling=strong`` or ``weak``."""
        return self.per_device_batch_size if scaling == "weak" else self.global_batch_size

    @property
    def peak_mib(self) -> float | None:
        """What the largest that fits took of the rank that needed most."""
        best = [t for t in self.trials if t.per_device_batch_size == self.largest_that_fits]
        peaks = [t.peak_allocated_mib or t.peak_rss_mib for t in best if t.outcome == "fits"]
        return peaks[-1] if peaks else None

    def line(self, scaling: str) -> str:
        """What was found and why it was not more."""
        limit = {
            "memory": f"{self.largest_that_fits} still fit; {self.margin:.0%} of that is kept free",
            "max_batch": f"the largest tried, for batch_search.max={self.largest_that_fits}: more "
            "may fit; raise it, in scalewise find-batch also by --most N",
            "data": "the largest tried: the training set has no more for each device",
        }[self.limited_by]
        found = f"batch_size={self.batch_size(scaling)} with scaling={scaling}"
        each = f"{self.per_device_batch_size} samples on each of {self.world_size} x {self.device}"
        return f"{found} was found by the search: {each} ({limit}){self._memory()}"

    def _memory(self) -> str:
        if self.peak_mib is None:
            return ""
        most = "" if self.limit_mib is None else f" of {self.limit_mib:,.0f}"
        return f"; {self.largest_that_fits} took {self.peak_mib:,.0f}{most} MiB a device"


def save_batch_search(folder: Path, record: BatchSearchRecord) -> Path:
    """Write the record into a cell's folder, and say where."""
    save_json(folder / NAME, record)
    return folder / NAME


def load_batch_search(folder: Path) -> BatchSearchRecord | None:
    """The search that a cell is, or that its batch size came from; None if that was typed.

    Raises RecordError for a damaged record.
    """
    path = folder / NAME
    return load_json(path, BatchSearchRecord) if path.exists() else None
