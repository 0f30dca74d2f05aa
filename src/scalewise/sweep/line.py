"""The cells of this host that wait for their turn, and whose turn it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scalewise.records import CellFolder
from scalewise.sweep.display import progress_of
from scalewise.sweep.estimate import Durations, Measured, Remaining
from scalewise.sweep.lease import Host
from scalewise.sweep.plan import Cell
from scalewise.sweep.running import RunningCell
from scalewise.sweep.schedule import Busy, Waiting, starts_now


@dataclass(frozen=True)
class Turn:
    """A cell that waits."""

    cell: Cell
    width: int
    host: Host


class Line:
    """Waiting cells in the order of the plan.

    Args:
        packed: start what fills the host best; otherwise one cell at a time, in order.
    """

    def __init__(self, packed: bool) -> None:
        self.packed = packed
        self.waiting: list[Turn] = []
        self.measured: list[Measured] = []
        """Durations of the folder's done cells, earlier ones first."""
        self._chosen: list[str] | None = None

    def forget_choice(self) -> None:
        """Something has ended, or devices have gone: what is to start next is decided anew."""
        self._chosen = None

    def next_up(self, running: Sequence[RunningCell], slots: int) -> list[Turn]:
        """The cells that are to start now, as soon as their devices can be leased."""
        if not self.packed:
            return [] if running else self.waiting[:1]
        if self._chosen is None:
            self._chosen = self._choose(running, slots)
        turns = {turn.cell.planned.cell_id: turn for turn in self.waiting}
        return [turns[key] for key in self._chosen if key in turns]

    def expected_s(self, cell: Cell) -> float | None:
        """How long a cell will take, by those that have ended; None while nothing tells."""
        expected = Durations(self.measured).of(cell.planned.config_id, cell.planned.workload)
        return None if expected is None else expected.seconds

    def _choose(self, running: Sequence[RunningCell], slots: int) -> list[str]:
        if not self.waiting:
            return []
        known = Durations(self.measured)
        waiting = []
        for turn in self.waiting:
            planned = turn.cell.planned
            expected = known.of(planned.config_id, planned.workload)
            seconds = None if expected is None else expected.seconds
            waiting.append(Waiting(planned.cell_id, turn.width, seconds))
        slots = max(slots, sum(r.width for r in running))
        return starts_now(waiting, [_busy(r, known) for r in running], slots)

    def remaining(self, running: Sequence[RunningCell]) -> list[Remaining]:
        """Everything without a result that waits or runs, for an estimate."""
        return [
            *(waiting_of(t.cell, t.width) for t in self.waiting),
            *(remaining_of(r.cell, r.folder, r.width, r.age_s) for r in running),
        ]


def waiting_of(cell: Cell, width: int) -> Remaining:
    """A cell that has not started."""
    planned = cell.planned
    return Remaining(planned.cell_id, planned.config_id, width, workload=planned.workload)


def remaining_of(cell: Cell, folder: CellFolder, width: int, age_s: float) -> Remaining:
    """A cell that has run for ``age_s``."""
    planned = cell.planned
    left = progress_of(planned.name, folder, width).seconds_left
    return Remaining(planned.cell_id, planned.config_id, width, age_s, left, planned.workload)


def _busy(running: RunningCell, known: Durations) -> Busy:
    one = remaining_of(running.cell, running.folder, running.width, running.age_s)
    left = known.left_of(one)
    # Nothing to go by: as long again as it has taken.
    return Busy(running.width, running.age_s if left is None else left.seconds)
