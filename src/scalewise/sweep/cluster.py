"""What every engine has in common whose cells run on other hosts than the sweep's.

It admits cells by what they ask for, takes their results from the folders they share with it, and
puts its own word of how a cell ended into the attempt that the cell itself recorded.
"""

from __future__ import annotations

import time
from dataclasses import replace

from scalewise.records import Attempt, Cause, CellFolder
from scalewise.sweep.engine import Engine, SweepReport
from scalewise.sweep.estimate import Durations
from scalewise.sweep.job import Outcome
from scalewise.sweep.measured import throughput_of
from scalewise.sweep.plan import Cell
from scalewise.sweep.retry import misses_a_peer


class ClusterEngine(Engine):
    """One sweep on other hosts. Everything but starting and watching is the local engine's."""

    def _expected_s(self, cell: Cell) -> float | None:
        """How long a cell will take, by those that have ended; None while nothing tells."""
        expected = Durations(self._measured).of(cell.planned.config_id, cell.planned.workload)
        return None if expected is None else expected.seconds

    def _leave_out(self, cell: Cell, report: SweepReport) -> None:
        """``sweep.max_gpu_hours`` has no room for a cell: it keeps its place for a larger one."""
        self._end(report, cell, Outcome("unstarted", str(self.budget)), None)


def result_of(folder: CellFolder) -> tuple[Outcome, float]:
    """How a cell that is done ended, and the seconds it took."""
    result = folder.load_result()
    missing = "" if result.objective is not None else "its objective was not measured"
    rate = throughput_of(folder, result.ranks)
    return (
        Outcome("done", missing, result.objective, rate),
        result.finished_at - result.started_at,
    )


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
        now, number = time.time(), folder.next_attempt_number()
        recorded = Attempt(number, "failed", cause, message, None, None, (), began_at, now)
    elif recorded.cause == "interrupted" or misses_a_peer(recorded):
        recorded = replace(recorded, outcome="failed", cause=cause, message=message, rank=None)
    folder.save_attempt(recorded)
    folder.clear_running()
    return Outcome("failed", recorded.message)
