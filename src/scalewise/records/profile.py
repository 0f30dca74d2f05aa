"""What a profiler saw in a few steps of one rank: ``profile/rank<r>.json``.

Written by cells of their own only (``profile.window``, ``profile.trace``): a profiler slows what
it watches, so none of their steps is timed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from scalewise.records.cell import CellFolder
from scalewise.records.files import RecordError, load_json, save_json


@dataclass(frozen=True)
class OperationTime:
    """One kernel (on a CPU host: one kind of collective) by its name."""

    name: str
    calls: int
    """In all steps of the window."""
    ms_per_step: float
    """Sum of its durations over the steps; those that ran side by side are all counted."""
    communication: bool


@dataclass(frozen=True)
class WindowProfile:
    """Communication and computation of one rank, from their intervals.

    Intervals that overlap, on whatever streams or threads, are merged first: nothing is counted
    twice. ``communication_ms - overlapped_ms`` is communication beside which nothing was computed.
    """

    rank: int
    steps: int
    """In the window."""
    timeline: Literal["device", "host"]
    """``device``: kernels by name; ``host``: collectives and operators of a CPU host."""
    span_ms: float
    """First to last of them, a step."""
    computation_ms: float
    """A step."""
    communication_ms: float | None
    """A step, waiting for the other ranks inside the collectives included; None where there was
    none."""
    overlapped_ms: float | None
    """The part of ``communication_ms`` during which something was computed, a step."""
    operations: tuple[OperationTime, ...]
    """Every collective, and the longest of the others, longest first."""
    collectives_ms: tuple[float, ...] = ()
    """How long each collective ran, in the order in which they began: the k-th is the same one on
    every rank that runs as many. Empty in records from before it was kept."""
    reduced_steps: tuple[int, ...] = ()
    """Numbers of the steps after the window, without profiler, in which DDP reduced gradients."""
    unreduced_steps: tuple[int, ...] = ()
    """Those in which it did not (``no_sync``), in blocks between the others: the replicas drift
    apart, and the model is thrown away. The step records tell how long each took."""
    trace: str | None = None
    """File name of the Chrome trace beside this record; None where none was asked for."""
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def not_overlapped_ms(self) -> float | None:
        """Communication with nothing computed beside it, a step."""
        if self.communication_ms is None or self.overlapped_ms is None:
            return None
        return self.communication_ms - self.overlapped_ms


def trace_name(rank: int) -> str:
    """File name of a rank's Chrome trace within the cell's folder ``profile``."""
    return f"rank{rank}.trace.json.gz"


def save_profile(folder: CellFolder, profile: WindowProfile) -> None:
    """Write ``profile/rank<r>.json``, atomically."""
    save_json(folder.profile_path / f"rank{profile.rank}.json", profile)


def load_profiles(folder: CellFolder) -> tuple[WindowProfile, ...]:
    """Of every rank that left one, in the order of ranks. Raises RecordError for a damaged one."""
    paths = folder.profile_path.glob("rank*.json")
    named = sorted((int(p.stem.removeprefix("rank")), p) for p in paths if p.stem[4:].isdecimal())
    return tuple(load_json(path, WindowProfile) for _, path in named)


__all__ = [
    "OperationTime",
    "RecordError",
    "WindowProfile",
    "load_profiles",
    "save_profile",
    "trace_name",
]
