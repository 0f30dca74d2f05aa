"""Which try at a cell the records on disk belong to, and whether it has ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scalewise.records import Attempt, CellFolder, CellResult


@dataclass(frozen=True)
class CurrentAttempt:
    """The try whose records lie in the cell's folder."""

    number: int
    """Counted from 1."""
    stamp: int
    """When it began to write (ns): tells two tries with the same number apart."""
    result: CellResult | None
    """Set if the cell is done."""
    failure: Attempt | None
    """Set if this try failed."""

    @property
    def has_ended(self) -> bool:
        return self.result is not None or self.failure is not None


def current_attempt(cell: CellFolder) -> CurrentAttempt | None:
    """The try to mirror, or None while there is nothing of it yet.

    A cell that was skipped never trained, so there is nothing of it to mirror either.
    Raises RecordError for a record that cannot be read.
    """
    if not (cell.path / "config.yaml").exists():
        return None
    stamp = _modified_ns(cell.path / "provenance.json")
    if (cell.path / "result.json").exists():
        result = cell.load_result()
        return CurrentAttempt(result.attempt, stamp or 0, result, None)
    last = max(cell.attempts(), key=lambda attempt: attempt.number, default=None)
    if last is None or (stamp is not None and stamp / 1e9 > last.finished_at):
        # Rank 0 writes the provenance when it starts: before that there is nothing to show.
        number = 1 if last is None else last.number + 1
        return None if stamp is None else CurrentAttempt(number, stamp, None, None)
    if last.outcome == "skipped":
        return None
    return CurrentAttempt(last.number, stamp or 0, None, last)


def _modified_ns(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
