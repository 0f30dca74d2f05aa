"""Stage two of a sweep: more rounds for ``repeats=auto``, decided from the records so far."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scalewise.records import SweepFolder
from scalewise.sweep.plan import Cell, Request, in_rounds, make_cell

if TYPE_CHECKING:
    from scalewise.analysis.repeats import Repeats
    from scalewise.analysis.runs import Configuration


@dataclass(frozen=True)
class NextRounds:
    """What a look at the records asks for."""

    cells: tuple[Cell, ...]
    """In the order in which they are to run; empty once everything is decided."""
    repeats: tuple[Repeats, ...]


def adaptive_requests(cells: Sequence[Cell]) -> dict[str, Request]:
    """``config_id`` to request of every configuration that leaves its repeats to the data."""
    return {
        cell.planned.config_id: cell.request
        for cell in cells
        if cell.request.cell.repeats == "auto"
    }


def next_rounds(
    folder: SweepFolder, requests: Mapping[str, Request], tried: Collection[str]
) -> NextRounds:
    """The cells that every undecided comparison still needs before its next look.

    ``tried`` are the ids of cells that this sweep has ended with, however they ended: none of
    them is run again, so that the rounds come to an end whatever fails.
    """
    from scalewise.analysis.load import load_sweep
    from scalewise.analysis.verdicts import reach_verdicts

    found = reach_verdicts(load_sweep(folder.path)).repeats
    rounds: dict[int, dict[str, Cell]] = {}
    undecided = [(m, r.wanted) for r in found if r.wanted is not None for m in r.members]
    for member, wanted in undecided:
        request = requests.get(member.config_id)
        if request is None:
            continue
        for repeat in range(wanted + _lost(member)):
            cell = make_cell(request, repeat)
            if cell.planned.cell_id not in tried:
                rounds.setdefault(repeat, {})[cell.planned.cell_id] = cell
    if not rounds:
        return NextRounds((), found)
    seed = next(iter(requests.values())).cell.sweep.order_seed
    # Rounds begin at different numbers: the same seed must not give each look the same order.
    blocks = {repeat: tuple(cells.values()) for repeat, cells in rounds.items()}
    return NextRounds(tuple(in_rounds(blocks, seed + min(blocks))), found)


def _lost(member: Configuration) -> int:
    """Runs that gave no figure and are made up for by others."""
    measured = len(member.values("samples_per_s"))
    ended = [c for c in member.cells if c.state in ("done", "failed", "skipped")]
    return len(ended) - measured
