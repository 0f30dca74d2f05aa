"""Ends that no supervisor of a cell wrote down: it was lost, never began, or found no room."""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from scalewise.records import Attempt, Cause, CellFolder, SweepFolder
from scalewise.sweep.job import Outcome

if TYPE_CHECKING:
    from scalewise.sweep.plan import Cell


def attempt_until_now(
    folder: CellFolder,
    outcome: Literal["failed", "skipped", "interrupted"],
    cause: Cause,
    message: str,
    lines: Sequence[str] = (),
    began_at: float | None = None,
) -> Attempt:
    """The cell's next attempt, of no rank in particular, which has just ended.

    ``began_at`` is Unix time; None for a try that ended before it began.
    """
    now = time.time()
    begin = now if began_at is None else began_at
    number = folder.next_attempt_number()
    return Attempt(number, outcome, cause, message, None, None, tuple(lines), begin, now)


def is_gone(folder: SweepFolder) -> bool:
    """Whether the folder of a sweep that runs is not where it was: it held its lock."""
    return not folder.lock_path.exists()


def gone(folder: SweepFolder) -> FileNotFoundError:
    """What to raise then."""
    what = "the sweep's folder is gone: deleted or moved while the sweep ran"
    return FileNotFoundError(errno.ENOENT, what, str(folder.path))


def record_failure(
    folder: SweepFolder, cell: Cell, outcome: Outcome, seconds: float | None
) -> Outcome:
    """Write down what ended a cell, now that its ranks are gone; as it is where that fails again.

    The disk may have room by then, and a cell's folder that was deleted is made anew. Raises
    FileNotFoundError where the sweep's own is gone.
    """
    if is_gone(folder):
        raise gone(folder)
    own = folder.cell(cell.planned.name)
    began_at = time.time() - (seconds or 0.0)
    attempt = attempt_until_now(own, "failed", "supervisor", outcome.message, (), began_at)
    try:
        own.save_config(cell.request.plain)
        own.save_attempt(attempt)
    except OSError:
        return outcome  # the last lines of the command say what no record does
    return replace(outcome, is_recorded=True)
