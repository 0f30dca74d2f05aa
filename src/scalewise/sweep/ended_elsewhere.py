"""How cells ended whose hosts are not the sweep's own, told by the folders they share with it.

Where a host or a supervisor was lost, the sweep puts its own word into the attempt that the cell
itself recorded.
"""

from __future__ import annotations

from dataclasses import replace

from scalewise.records import Attempt, Cause, CellFolder
from scalewise.sweep.job import Outcome
from scalewise.sweep.retry import misses_a_peer
from scalewise.sweep.unrecorded import attempt_until_now


def result_of(folder: CellFolder) -> tuple[Outcome, float]:
    """How a cell that is done ended, and the seconds it took."""
    return Outcome("done"), folder.load_result().took_s


def attempt_since(folder: CellFolder, first: int) -> Attempt | None:
    """The last attempt with a number of ``first`` or more."""
    attempts = [attempt for attempt in folder.attempts() if attempt.number >= first]
    return attempts[-1] if attempts else None


def record_loss(
    folder: CellFolder, first: int, cause: Cause, message: str, began_at: float
) -> Outcome:
    """Record that a cell lost its host or its supervisor, and return that as its outcome.

    Where a supervisor lived to record that the sweep was gone, or that a peer was, which is all it
    could see, its attempt (number ``first`` or later) gets the true reason.
    """
    recorded = attempt_since(folder, first)
    if recorded is None:
        recorded = attempt_until_now(folder, "failed", cause, message, (), began_at)
    elif recorded.cause == "interrupted" or misses_a_peer(recorded):
        recorded = replace(recorded, outcome="failed", cause=cause, message=message, rank=None)
    folder.save_attempt(recorded)
    folder.clear_running()
    return Outcome("failed", recorded.message)
