"""How far a sweep is: what has ended and how long that took, and what is left."""

from __future__ import annotations

from scalewise.records import SweepFolder
from scalewise.sweep.display import Tally
from scalewise.sweep.durations import Durations
from scalewise.sweep.job import Outcome
from scalewise.sweep.plan import Cell
from scalewise.sweep.unrecorded import record_failure


class Standing:
    """What the ended cells of the sweep in ``folder`` tell of it."""

    def __init__(self, folder: SweepFolder) -> None:
        self._folder = folder
        self.tally = Tally(total=0)
        self.durations = Durations()

    def done_before(self, cell: Cell) -> Outcome | None:
        """The outcome of a cell whose result the folder holds already; None for any other."""
        result = self._folder.cell(cell.planned.name).result_of(cell.planned.cell_id)
        if result is None:
            return None
        self.tally.already_done += 1
        self.durations.add(cell.planned.config_id, result.took_s)
        return Outcome("done")

    def ended(self, cell: Cell, outcome: Outcome, seconds: float | None) -> Outcome:
        """A cell has ended for good. Returns ``outcome``, recorded if that is possible by now.

        ``seconds`` is what its last try took; None where this sweep process did not run it.
        """
        if outcome.state == "done" and seconds is not None:
            self.durations.add(cell.planned.config_id, seconds)
        if not outcome.is_recorded:
            outcome = record_failure(self._folder, cell, outcome, seconds)
        self.tally.count(outcome)
        return outcome
