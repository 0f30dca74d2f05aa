"""What a command asks of a sweep's folder: which cells, and what to say before they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from scalewise.errors import ConfigError
from scalewise.records import SweepFolder
from scalewise.sweep import auto, auto_batch
from scalewise.sweep.own_code import check_own_code
from scalewise.sweep.places import Cluster, ThisHost
from scalewise.sweep.plan import Cell, Request, folded, given_twice, plan
from scalewise.sweep.resume import (
    Selection,
    check_options,
    current_code,
    differing,
    is_done,
    planned_repeats,
    refuse_mixing,
    select,
)


def plan_in(folder: Path, requests: Sequence[Request]) -> list[Cell]:
    """The cells that ``requests`` ask for in ``folder``. Raises :class:`ConfigError`."""
    _check_resumed(requests)
    for one in requests:
        check_options(one.cell.sweep)
    check_own_code(requests)
    seed = requests[0].cell.sweep.order_seed if requests else 0
    sweep = SweepFolder(folder)
    first = auto.stage_one(auto_batch.with_searches(requests, sweep))
    return plan(tuple(first), seed, planned_repeats(sweep))


def _check_resumed(requests: Sequence[Request]) -> None:
    """Refuse to finish a sweep that was never begun. Raises :class:`ConfigError`."""
    for one in requests:
        resume = one.cell.sweep.resume
        if resume is not None and not SweepFolder(resume).plan_path.exists():
            raise ConfigError(
                f"sweep.resume: found {resume!r}, which holds no sweep.json; "
                "allowed: the folder of a sweep that was begun"
            )


def left_open(requests: Sequence[Request]) -> tuple[Request, ...]:
    """The requests that a first stage decides."""
    return (*auto_batch.open_batches(requests), *auto.open_strategies(requests))


def select_in(cells: Sequence[Cell], sweep: SweepFolder, undecided: Sequence[Request]) -> Selection:
    """What of ``cells`` to look after; a search whose finding is lost is made again.

    ``undecided``: of their requests, those that a first stage decides (:func:`left_open`).
    """
    selection = select(cells, sweep, cells[0].request.cell.sweep.rerun)
    return replace(selection, again=selection.again | auto_batch.useless(undecided, sweep))


def remarks(requests: Sequence[Request], typed: Sequence[str]) -> list[str]:
    """What a user may have meant otherwise."""
    line = folded(requests)
    return [*given_twice(typed), *([] if line is None else [line])]


def mixed(sweep: SweepFolder, selection: Selection, host: ThisHost) -> list[str]:
    """What results of the folder differ in from those that would be added, one line each.

    Raises :class:`ConfigError` for those that must not lie beside each other.
    """
    on_this_host = not isinstance(host, Cluster)  # files may be others where the cells would run
    again = selection.again
    found = refuse_mixing(sweep, selection.cells, again, host.models(), on_this_host)
    if not found:
        # Nothing is added to those results.
        return _of_older_code(sweep, selection)
    return [f"mixed: {difference}" for difference in found]


def _of_older_code(folder: SweepFolder, selection: Selection) -> list[str]:
    """How the code differs from that of done cells that are not run again, a line each."""
    stay = [
        cell
        for cell in selection.cells
        if cell.planned.cell_id not in selection.again and is_done(folder, cell.planned)
    ]
    if not stay:
        return []
    found = differing(folder, [cell.planned for cell in stay], current_code(stay), set())
    return [f"not run again: {line}; sweep.rerun=all runs them anew" for line in found]
