"""``sweep.dry_run=true``: what a sweep would run, and how long that would take."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence

from scalewise.config import ConfigError
from scalewise.host import plural
from scalewise.records import CellResult, PlannedCell, SweepFolder, state_of
from scalewise.supervisor import Outcome
from scalewise.sweep.display import duration
from scalewise.sweep.engine import SweepReport, remember
from scalewise.sweep.plan import Cell
from scalewise.sweep.preflight import Place, ThisHost
from scalewise.sweep.progress import Durations, Remaining
from scalewise.sweep.resume import Selection


def print_preview(
    sweep: SweepFolder,
    selection: Selection,
    host: ThisHost,
    packed: bool,
    later: Sequence[str],
    remarks: Sequence[str],
) -> None:
    """Print what a run would do, and ``remarks`` on it.

    Where this host can run nothing of what is left, the exit status is that of a sweep which has to
    skip it. Raises :class:`ConfigError` where that is a single cell.
    """
    refused = refusals(sweep, selection, host)
    if refused and len(selection.cells) == 1:
        raise ConfigError(*refused.values())
    lines = [*preview(sweep, selection, host, packed, later), *remarks]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    if refused:
        sys.stdout.flush()  # what nobody reads is no sweep that was interrupted
        skipped = {cell_id: Outcome("skipped", why) for cell_id, why in refused.items()}
        remember(SweepReport(sweep.path, skipped, list(selection.cells)))


def refusals(folder: SweepFolder, selection: Selection, host: ThisHost) -> dict[str, str]:
    """Why this host cannot run what is left, by the id of each cell; empty where it can run some
    of it, or nothing is left."""
    refused = {c.planned.cell_id: why for c in selection.cells if (why := host(c).refusal)}
    if not refused:
        return {}
    left = [c.planned.cell_id for c in _to_run(selection, _results(folder, selection.cells))]
    return {one: refused[one] for one in left} if refused.keys() >= set(left) else {}


def preview(
    folder: SweepFolder,
    selection: Selection,
    host: ThisHost,
    packed: bool,
    later: Sequence[str] = (),
) -> Iterator[str]:
    """Lines: one a cell in the order of the plan, with what varies among them, then the sums.

    ``later`` is what these cells decide, in words.
    """
    results = _results(folder, selection.cells)
    to_run = _to_run(selection, results)
    places = {cell.planned.cell_id: host(cell) for cell in to_run}
    slots = host.slots()
    known = Durations()
    for result in results.values():
        known.add(result.config_id, result.took_s)
    varying = varying_overrides([cell.planned for cell in selection.cells])
    width = max(map(len, varying.values()), default=0)
    width = max(width, len("varies")) if width else 0
    yield _row("id", "devices", "expected", "state", "varies" if width else "", width, "cell")
    for cell in selection.cells:
        where = places.get(cell.planned.cell_id)
        yield _line(cell, where, known, varying[cell.planned.cell_id], width)
    for one in later:
        yield _row("", "?", "?", "later", "", width, one)
    able = [cell for cell in to_run if not places[cell.planned.cell_id].refusal]
    skipped = len(to_run) - len(able)
    done = len(selection.cells) - len(to_run)
    total = len(selection.cells)
    sums = f"{total} {plural(total, 'cell')}: {done} done, {len(able)} to run"
    yield sums + (f", {skipped} this host cannot run" if skipped else "")
    if able:
        remaining = [
            Remaining(cell.planned.config_id, places[cell.planned.cell_id].width or slots)
            for cell in able
        ]
        left_s = known.seconds_left(remaining, slots, packed)
        unknown = "unknown, as none of these cells is done yet"
        yield f"expected time: {unknown if left_s is None else duration(left_s)}"
    else:
        yield (
            "nothing can run: see above what this host lacks" if to_run else "nothing is left to do"
        )


def _to_run(selection: Selection, results: Collection[str]) -> list[Cell]:
    """The cells without a result, and those that run again. ``results``: ids that have one."""
    ids = ((cell, cell.planned.cell_id) for cell in selection.cells)
    return [cell for cell, one in ids if one not in results or one in selection.again]


def _results(folder: SweepFolder, cells: Sequence[Cell]) -> dict[str, CellResult]:
    read = ((c.planned.cell_id, state_of(folder, c.planned).result) for c in cells)
    return {cell_id: result for cell_id, result in read if result is not None}


def varying_overrides(planned: Sequence[PlannedCell]) -> dict[str, str]:
    """By each cell's id those of its overrides that other cells do not have, as typed.

    A key that some cell lacks varies too. Empty where all cells have the same.
    """
    common = set.intersection(*(set(cell.overrides) for cell in planned)) if planned else set()
    return {
        cell.cell_id: " ".join(word for word in cell.overrides if word not in common)
        for cell in planned
    }


def _row(
    cell_id: str, devices: str, expected: str, state: str, varies: str, width: int, name: str
) -> str:
    """``width`` is that of the column of what varies; without one there is no such column."""
    middle = f"{varies:{width}}  " if width else ""
    return f"{cell_id:12}  {devices:>7}  {expected:>10}  {state:8}  {middle}{name}"


def _line(cell: Cell, where: Place | None, known: Durations, varies: str, width: int) -> str:
    planned = cell.planned
    devices, takes, state, name = "", "", "done", planned.name
    if where is not None and where.refusal:
        state, name = "cannot", f"{planned.name}: {where.refusal}"
    elif where is not None:
        expected = known.of(planned.config_id)
        state = "to run"
        devices = "?" if where.width is None else str(where.width)
        takes = "?" if expected is None else duration(expected)
    return _row(planned.cell_id, devices, takes, state, varies, width, name)
