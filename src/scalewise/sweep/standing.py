"""How far a sweep is: what has ended and how long that took, and what is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scalewise.records import SweepFolder
from scalewise.sweep.display import Tally
from scalewise.sweep.durations import Remaining
from scalewise.sweep.finished_times import duration_of, time_taken
from scalewise.sweep.history import History
from scalewise.sweep.job import Outcome
from scalewise.sweep.outlook import Outlook
from scalewise.sweep.plan import Cell
from scalewise.sweep.unrecorded import record_failure


class Standing:
    """What the ended cells of the sweep in ``folder`` tell of it."""

    def __init__(self, folder: SweepFolder) -> None:
        self._folder = folder
        self._outlook = Outlook()
        self.tally = Tally(total=0)
        self.history = History()

    def done_before(self, cell: Cell) -> Outcome | None:
        """The outcome of a cell whose result the folder holds already; None for any other."""
        folder = self._folder.cell(cell.planned.name)
        result = folder.result_of(cell.planned.cell_id)
        if result is None:
            return None
        self.tally.already_done += 1
        self.history.add(duration_of(folder, result, cell.planned.workload))
        return Outcome("done")

    def ended(self, cell: Cell, outcome: Outcome, seconds: float | None) -> Outcome:
        """A cell has ended for good. Returns ``outcome``, recorded if that is possible by now.

        ``seconds`` is what its last try took; None where this sweep process did not run it.
        """
        if outcome.state == "done" and seconds is not None:
            folder = self._folder.cell(cell.planned.name)
            self.history.add(time_taken(folder, cell.planned, seconds))
        if not outcome.is_recorded:
            outcome = record_failure(self._folder, cell, outcome, seconds)
        self.tally.count(outcome)
        return outcome

    def expected_s(self, cell: Cell) -> float | None:
        """How long a cell will take, by those that have ended; None while nothing tells."""
        return self.history.durations.seconds_of(cell.planned)

    def seconds_left(
        self, remaining: Callable[[], Sequence[Remaining]], slots: int | None, packed: bool
    ) -> float | None:
        """Until the last cell has ended; ``remaining`` is what runs and what waits.

        None while nothing tells. Cheap enough to be asked about twice a second.
        """
        return self._outlook.seconds_left(self.history.measured, remaining, slots, packed)
