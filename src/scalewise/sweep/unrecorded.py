"""Ends that a supervisor could not write down: the disk was full, or the folder had gone."""

from __future__ import annotations

import errno
import time
from dataclasses import replace

from scalewise.records import Attempt, SweepFolder
from scalewise.sweep.job import Outcome
from scalewise.sweep.plan import Cell


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
    now = time.time()
    number, began = own.next_attempt_number(), now - (seconds or 0.0)
    attempt = Attempt(
        number, "failed", "supervisor", outcome.message, None, None, (), began, now
    )  # fmt: skip
    try:
        own.save_config(cell.request.plain)
        own.save_attempt(attempt)
    except OSError:
        return outcome  # the last lines of the command say what no record does
    return replace(outcome, is_recorded=True)
