"""How a cell ended: tries, the result, and what the trackers were given of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from scalewise.records.files import Rank, UnixTime, WorldSize
from scalewise.records.provenance import DeviceInfo
from scalewise.records.rank import RankSummary


@dataclass(frozen=True)
class RunningAttempt:
    """A try under way. Its file is touched every second or so while its supervisor lives."""

    number: PositiveInt
    """Counted from 1."""
    started_at: UnixTime
    """Unix time."""
    devices: tuple[DeviceInfo, ...]
    """One a rank."""
    pids: tuple[int, ...] = ()
    """Of the ranks, once they have started; only where the sweep's own process samples them."""


Cause = Literal[
    "exception",
    "oom",
    "signal",
    "exit",
    "timeout",
    "hang",
    "config",
    "disk",
    "host",
    "supervisor",
    "interrupted",
    "preempted",
]
"""What a try ended of."""


@dataclass(frozen=True)
class Attempt:
    """A try that did not end in a result."""

    number: PositiveInt
    outcome: Literal["failed", "skipped", "interrupted"]
    cause: Cause
    message: str
    """One line: what happened, and where to look."""
    rank: Rank | None
    """The rank that failed first; None when no rank is to blame."""
    exit_code: int | None
    """That rank's exit status; negative for the signal that ended it."""
    last_lines: tuple[str, ...]
    """The end of that rank's stderr."""
    started_at: UnixTime
    finished_at: UnixTime
    elapsed_s: NonNegativeFloat | None = None
    """From start to end by a clock that nobody sets; None where nobody saw
    both, and in older records."""

    @property
    def took_s(self) -> float:
        """Seconds from start to end; by the time of day where nothing better is known."""
        return _seconds(self.started_at, self.finished_at, self.elapsed_s)


@dataclass(frozen=True)
class CellResult:
    """A finished cell. It is written last, and only when every rank ended well."""

    cell_id: str
    """Hash of the requested configuration that determines the result, repeat included."""
    config_id: str
    """The same without the repeat: cells that share it are repeats of one another."""
    name: str
    repeat: NonNegativeInt
    attempt: PositiveInt
    """How many tries it took, counted from 1."""
    started_at: UnixTime
    finished_at: UnixTime
    world_size: WorldSize
    strategy: str
    scaling: Literal["strong", "weak"]
    global_batch_size: PositiveInt
    per_device_batch_size: PositiveInt
    co_tenants: tuple[str, ...]
    """Cells and foreign processes that shared the host while this one ran."""
    ranks: Annotated[tuple[RankSummary, ...], Field(min_length=1)]
    models: PositiveInt = 1
    """Models that were trained: above 1, ranks that never met, a ceiling and no training job."""
    elapsed_s: NonNegativeFloat | None = None
    """From start to end by a clock that nobody sets; None in older records."""

    FORMER_KEYS: ClassVar[frozenset[str]] = frozenset({"objective"})

    @property
    def took_s(self) -> float:
        """Seconds from start to end; by the time of day where nothing better is known."""
        return _seconds(self.started_at, self.finished_at, self.elapsed_s)


def _seconds(started_at: float, finished_at: float, elapsed_s: float | None) -> float:
    # Between two times of day the clock may have been set, even back to before the start.
    return max(0.0, finished_at - started_at) if elapsed_s is None else elapsed_s


@dataclass(frozen=True)
class TrackerState:
    """What one tracker was given, and what it gave back."""

    status: Literal["synced", "incomplete", "failed"]
    handed_over: int
    """Rows logged to it."""
    read_back: int | None
    """Rows that it counts itself at the end; None where it does not, or could not be asked."""
    location: str
    """Project and run, folder or URL: where a person finds it."""
    problem: str | None = None
    """What went wrong, in one line."""


@dataclass(frozen=True)
class TrackingRecord:
    """How the mirrors of a cell stand."""

    trackers: Mapping[str, TrackerState]
    """``trackio`` and ``wandb``."""
    attempt: int = 1
    """The try that was mirrored, counted from 1."""
    alerts: tuple[str, ...] = ()
    """Titles of the alerts that were handed over, each said once."""
