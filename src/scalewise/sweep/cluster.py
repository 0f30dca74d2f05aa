"""What every engine has in common whose cells run on other hosts than the sweep's.

It admits cells by what they ask for, takes their results from the folders they share with it, and
puts its own word of how a cell ended into the attempt that the cell itself recorded.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from scalewise.config import ConfigError
from scalewise.records import Attempt, Cause, CellFolder
from scalewise.sweep.engine import Engine, SweepReport
from scalewise.sweep.estimate import Durations
from scalewise.sweep.job import Outcome
from scalewise.sweep.lease import HostMismatch
from scalewise.sweep.measured import throughput_of
from scalewise.sweep.plan import Cell


class ClusterEngine(Engine):
    """One sweep on other hosts. Everything but starting and watching is the local engine's."""

    @abstractmethod
    def _ask_for(self, cell: Cell) -> None:
        """Queue a cell. Raises :class:`HostMismatch` where it cannot be asked for."""

    def _take_over(self, cell: Cell, folder: CellFolder) -> bool:
        """Whether an earlier sweep process left the cell running: then it is watched."""
        return False

    def _admit(self, cell: Cell, report: SweepReport, alone: bool) -> None:
        """Queue a cell, unless it is done, runs already, or cannot be asked for."""
        folder = self.folder.cell(cell.planned.name)
        if self._was_done(cell, report):
            return
        try:
            if self._take_over(cell, folder):
                return
            self._ask_for(cell)
        except HostMismatch as mismatch:
            if alone:
                raise ConfigError(str(mismatch)) from None
            folder.save_config(cell.request.plain)
            self._skip([cell], report, str(mismatch))
            return
        folder.save_config(cell.request.plain)

    def _expected_s(self, cell: Cell) -> float | None:
        """How long a cell will take, by those that have ended; None while nothing tells."""
        expected = Durations(self._measured).of(cell.planned.config_id, cell.planned.workload)
        return None if expected is None else expected.seconds

    def _leave_out(self, cell: Cell, report: SweepReport) -> None:
        """``sweep.max_gpu_hours`` has no room for a cell: it keeps its place for a larger one."""
        self._end(report, cell, Outcome("unstarted", str(self.budget)), None)

    def _skip(self, cells: Sequence[Cell], report: SweepReport, why: str) -> None:
        for cell in cells:
            self._record(self.folder.cell(cell.planned.name), "skipped", "host", why)
            self._end(report, cell, Outcome("skipped", why), None)


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

    Where the supervisor lived to record that the sweep was gone, which is all it could see, its
    attempt (number ``first`` or later) gets the true reason.
    """
    recorded = attempt_since(folder, first)
    if recorded is None:
        now, number = time.time(), folder.next_attempt_number()
        recorded = Attempt(number, "failed", cause, message, None, None, (), began_at, now)
    elif recorded.cause == "interrupted":
        recorded = replace(recorded, outcome="failed", cause=cause, message=message)
    folder.save_attempt(recorded)
    folder.clear_running()
    return Outcome("failed", recorded.message)
