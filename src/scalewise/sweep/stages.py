"""Stage two of ``batch_size=auto`` and ``strategy=auto``: what is trained, and by what evidence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from scalewise.records import SweepFolder, save_decision
from scalewise.records.batch_search import save_batch_search
from scalewise.sweep import auto, auto_batch
from scalewise.sweep.plan import Cell, Request, in_rounds, plan
from scalewise.sweep.resume import is_done, is_rerun, planned_repeats


class Stages:
    """What the first stage of a sweep comes to.

    Args:
        folder: the sweep's.
        note: says a line to whoever watches.
    """

    def __init__(self, folder: SweepFolder, note: Callable[[str], None]) -> None:
        self._folder = folder
        self._note = note
        self._evidence: dict[str, Callable[[Path], object]] = {}
        """``config_id`` of what was decided to what writes its evidence into a folder."""
        self.chosen: dict[str, str] = {}
        """``config_id`` of a request that was open to that of what is trained for it."""

    def batch_sizes(self, left_open: Sequence[Request]) -> list[Request]:
        """Those that left their batch size to a search, with what it found."""
        trained, said = [], dict[str, None]()
        for asked in filter(auto_batch.is_open, left_open):
            found = auto_batch.resolve(self._folder, asked)
            said |= dict.fromkeys(found.lines)
            if found.trained is not None and found.record is not None:
                self._decide(asked, found.trained, partial(save_batch_search, record=found.record))
                trained.append(found.trained)
        # Once for all that share a search.
        for line in said:
            self._note(f"batch    {line}")
        return trained

    def strategies(self, left_open: Sequence[Request]) -> list[Request]:
        """Those that left their strategy to short runs, with the one that these speak for."""
        trained = []
        for asked in left_open:
            if auto_batch.is_open(asked):
                continue
            chosen = auto.choose(self._folder, asked)
            for line in chosen.lines:
                self._note(f"strategy {line}")
            if chosen.trained is not None and chosen.decision is not None:
                write = partial(save_decision, decision=chosen.decision)
                self._decide(asked, chosen.trained, write)
                trained.append(chosen.trained)
        return trained

    def write_evidence(self, cell: Cell) -> None:
        """Leave in a cell's folder why it is trained as it is; nothing where that was typed."""
        write = self._evidence.get(cell.planned.config_id)
        if write is not None:
            write(self._folder.cell(cell.planned.name).path)

    def _decide(self, asked: Request, trained: Request, write: Callable[[Path], object]) -> None:
        self.chosen[asked.config_id] = trained.config_id
        self._evidence[trained.config_id] = write


def split(cells: Sequence[Cell]) -> tuple[Sequence[Cell], Sequence[Cell]]:
    """The searches, and what waits for them; without any, nothing waits."""
    searches = [cell for cell in cells if auto_batch.is_search(cell)]
    if not searches:
        return cells, ()
    return searches, [cell for cell in cells if not auto_batch.is_search(cell)]


def later_cells(
    folder: SweepFolder, requests: Sequence[Request], known: Collection[str]
) -> list[Cell]:
    """The cells of what a first stage decided, but for those that were asked for anyway.

    ``known`` is the ``config_id`` of whatever the sweep has.
    """
    decided = [one for one in requests if one.config_id not in known]
    seed = decided[0].cell.sweep.order_seed if decided else 0
    planned = plan(decided, seed, planned_repeats(folder))
    # The devices were examined with the first stage.
    return [cell for cell in planned if cell.request.cell.workload == "train"]


def reruns(folder: SweepFolder, cells: Sequence[Cell]) -> frozenset[str]:
    """Ids of those of ``cells`` that are done and by ``sweep.rerun`` are to run once more."""
    return frozenset(
        cell.planned.cell_id
        for cell in cells
        if is_rerun(cell.planned, cell.request.cell.sweep.rerun) and is_done(folder, cell.planned)
    )


def interleaved(cells: Sequence[Cell]) -> list[Cell]:
    """Round by round; an examination of the devices comes before all."""
    rounds: dict[int, list[Cell]] = {}
    for cell in cells:
        if cell.request.cell.workload == "train":
            rounds.setdefault(cell.planned.repeat, []).append(cell)
    seed = cells[0].request.cell.sweep.order_seed if cells else 0
    first = [cell for cell in cells if cell.request.cell.workload != "train"]
    return first + in_rounds(rounds, seed)
