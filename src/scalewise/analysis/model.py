"""A sweep and its cells as frozen values: what ended how, and everything it left behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from scalewise.config import REHEARSALS
from scalewise.records import (
    CellResult,
    DeviceSeries,
    Ending,
    ImportedResult,
    MetricRow,
    PlannedCell,
    Provenance,
    ShardIndices,
    State,
    StepSeries,
    StrategyDecision,
    TrackingRecord,
    WindowProfile,
)

WarmUpRule = Literal["count", "MSER-5", "not steady"]
"""``count``: too few steps to search in. ``not steady``: more should be left out than may be, so
that nothing beyond ``warmup_steps`` is."""


@dataclass(frozen=True)
class WarmUp:
    """Which steps of a run are timed."""

    rule: WarmUpRule
    least: int
    """The first step after ``warmup_steps``."""
    timed_from: int
    steady_from: int
    """The first step at the level of those after it."""
    end: int
    """The step after the last one."""

    def __str__(self) -> str:
        if self.rule == "not steady":
            is_late = 2 * (self.steady_from - self.least) > self.end - self.least
            after = "half of the timed steps" if is_late else "a stall"
            return (
                "the step time was not steady at first: it came to its last level at step "
                f"{self.steady_from} of {self.end}, after {after}; "
                f"all steps from {self.least} on are timed"
            )
        return f"timed from step {self.timed_from} of {self.end} ({self.rule})"


@dataclass(frozen=True)
class CellRecords:
    """One cell of a sweep and all its records that could be read."""

    planned: PlannedCell
    path: Path
    ending: Ending
    """How it ended, or how far it is: ``interrupted`` too where its processes are gone without a
    word. The message says why there is no result, and is empty for a cell that is done."""
    config: Mapping[str, Any] | None
    """The resolved configuration; None if it could not be read."""
    result: CellResult | None
    """Present if and only if it is ``done``."""
    provenance: Provenance | None
    steps: Sequence[StepSeries] = ()
    """One series a rank, in the order of ranks; ranks whose file is unreadable are absent."""
    warm_up: WarmUp | None = None
    """Which steps are flagged as warm-up; None where no step can be timed."""
    devices: tuple[DeviceSeries, ...] = ()
    """One series a host."""
    metrics: Mapping[int, tuple[MetricRow, ...]] = field(default_factory=dict)
    """Rank to its rows."""
    shards: tuple[ShardIndices, ...] = ()
    attempts: tuple[Ending, ...] = ()
    """Tries without a result, oldest first."""
    tracking: TrackingRecord | None = None
    imported: ImportedResult | None = None
    """A published line for the same configuration; None where there is none."""
    decision: StrategyDecision | None = None
    """Why it was trained with this strategy; None where that was asked for by name."""
    profiles: tuple[WindowProfile, ...] = ()
    """What a profiler saw, one a rank, in cells made for it."""
    problems: tuple[str, ...] = ()
    """What is missing or damaged, one line each."""
    result_fault: str = ""
    """Which of ``problems`` keeps a result that is there from being used; else empty."""
    step_faults: tuple[str, ...] = ()
    """Those of ``problems`` that leave its times in doubt."""
    metric_faults: tuple[str, ...] = ()
    """Those of ``problems`` that leave its metrics in doubt."""

    @property
    def state(self) -> State:
        return self.ending.outcome


@dataclass(frozen=True)
class Sweep:
    """Every cell of a sweep, in the order of its plan."""

    path: Path
    command: tuple[str, ...]
    """What the user typed; empty if the plan could not be read."""
    order_seed: int | None
    created_at: float | None
    """Unix time."""
    cells: tuple[CellRecords, ...]
    problems: tuple[str, ...] = ()
    archive: Path | None = None
    """What ``path`` was unpacked from; None where it was given itself."""

    @property
    def home(self) -> Path:
        """Its folder as a user names it; of ``A.zip`` that is ``A``."""
        return self.path if self.archive is None else self.archive.with_suffix("")


def setting(config: Mapping[str, Any] | None, key: str) -> Any:
    """The value of a dotted key, as ``strategy.kind``; None where there is none."""
    found: Any = config
    for name in key.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def is_profiled(config: Mapping[str, Any] | None) -> bool:
    """Whether it runs under torch's profiler."""
    return bool(setting(config, "profile.window") or setting(config, "profile.trace"))


def rehearsed_kind(config: Mapping[str, Any] | None) -> str | None:
    """Kind of the strategy most of whose ranks were to be emulated: no figure of it was measured on
    them. None where all were there."""
    kind = setting(config, "strategy.kind")
    return next((real for real, played in REHEARSALS.items() if played == kind), None)


StartedBy = Literal["sweep", "script", "monitor"]
"""``scalewise train``, ``scalewise run``, or the user, with a monitor in the script."""


def is_monitored(config: Mapping[str, Any] | None) -> bool:
    """Whether a script of the user's own trained it, under the Monitor callback."""
    return bool(setting(config, "tracking.name") == "monitor")
