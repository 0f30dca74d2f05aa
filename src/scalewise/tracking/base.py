"""What a tracker is to the mirror: the one seam through which rows leave the records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from scalewise.records import Alert
from scalewise.tracking.config import TrackingConfig

Values = Mapping[str, float]
"""One row: names as in the records to finite numbers. What is missing is left out, never zero."""


class TrackerError(Exception):
    """A tracker that cannot do what it was asked, in one line."""


@dataclass(frozen=True)
class RunInfo:
    """What identifies a run in every tracker."""

    run_id: str
    """The same each time the same attempt at the same cell is mirrored."""
    name: str
    group: str | None
    """The sweep's folder name; None for a cell on its own."""
    tags: tuple[str, ...]
    folder: Path
    """Where a tracker that writes files may put its own folder."""
    config: Mapping[str, Any]
    """The cell's resolved configuration, and what scalewise knows beside it."""
    tracking: TrackingConfig


@dataclass(frozen=True)
class RunSummary:
    """How a run ended."""

    state: Literal["finished", "failed", "incomplete"]
    values: Mapping[str, float]
    """``summary/...`` to one number each; may be empty."""
    config: Mapping[str, Any]
    """Known only at the end: provenance, outcome."""


class TrackerRun(Protocol):
    """A run being mirrored. Every method may raise; the mirror says so and goes on without it.

    ``row_id`` is the place of the row in the records: the same row always has the same one.
    """

    @property
    def location(self) -> str:
        """Where a person finds the run."""

    @property
    def shortcoming(self) -> str | None:
        """What keeps a run that lost no row from being where it was wanted; None as a rule."""

    def log(self, row_id: str, time: float, step: int, values: Values) -> None:
        """Hand over metrics at an optimizer step; ``time`` is Unix time."""

    def log_system(self, row_id: str, time: float, values: Values) -> None:
        """Hand over device readings at Unix time ``time``."""

    def alert(self, row_id: str, time: float, step: int, alert: Alert) -> None:
        """Tell people of a condition. It is no row and does not count as one."""

    def flush(self) -> None:
        """Let go of whatever is buffered here."""

    def finish(self, summary: RunSummary) -> None:
        """Log the summary and close the run. Counts as one row if it has values."""

    def read_back(self) -> int | None:
        """Rows of the run as the tracker counts them; None where it does not."""


class Tracker(Protocol):
    """A place runs are mirrored to."""

    def start_run(self, info: RunInfo) -> TrackerRun:
        """Begin a run, or begin it again: rows it already holds are not doubled."""


def metric_name(name: str) -> str:
    """As every tracker takes it: a user may log under no name, or one that no encoding has.

    Each of them would refuse all of the run for it.
    """
    return name.encode(errors="backslashreplace").decode() or "(no name)"


def open_tracker(name: str) -> Tracker:
    """The tracker called ``name``. Raises :class:`TrackerError` if its package cannot be used."""
    # Importing a tracker takes a second or more, and only this one may be wanted.
    try:
        if name == "trackio":
            from scalewise.tracking.trackio import TrackioTracker

            return TrackioTracker()
        if name == "wandb":
            from scalewise.tracking.wandb import WandbTracker

            return WandbTracker()
    except Exception as error:
        # A broken third-party package may raise anything at all while it is imported.
        raise TrackerError(f"the package cannot be imported: {error}") from error
    raise TrackerError(f"found tracker {name!r}; allowed: trackio, wandb")
