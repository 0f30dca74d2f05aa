"""``sweep.dry_run=true``: what a sweep would run, and how long that would take."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from scalewise.records import CellResult, PlannedCell, SweepFolder
from scalewise.sweep import auto, auto_batch
from scalewise.sweep.asked import left_open, mixed, remarks, select_in
from scalewise.sweep.display import duration
from scalewise.sweep.durations import Durations, Remaining
from scalewise.sweep.estimate import Estimate, estimate
from scalewise.sweep.finished_times import duration_of
from scalewise.sweep.left_behind import differences
from scalewise.sweep.places import Place, ThisHost
from scalewise.sweep.plan import Cell, Request
from scalewise.sweep.resume import Selection
from scalewise.sweep.status import between_cells_s


def print_preview(
    folder: Path,
    cells: Sequence[Cell],
    host: ThisHost,
    packed: bool,
    requests: Sequence[Request],
    typed: Sequence[str],
) -> None:
    """Print what a run would do. Raises :class:`ConfigError` for what it would be refused for."""
    sweep = SweepFolder(folder)
    undecided = left_open(requests)
    later = [f"the better of {one}" for one in auto.described(requests)]
    later += auto_batch.described(requests, sweep)
    selection = select_in(cells, sweep, undecided)
    lines = [*preview(sweep, selection, host, packed, later), *remarks(requests, typed)]
    lines += mixed(sweep, selection, host)
    lines += differences(sweep, cells, bool(undecided))
    sys.stdout.write("".join(f"{line}\n" for line in lines))


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
    to_run = [
        cell
        for cell in selection.cells
        if cell.planned.cell_id not in results or cell.planned.cell_id in selection.again
    ]
    places = {cell.planned.cell_id: host(cell) for cell in to_run}
    slots = host.slots()
    workloads = {cell.planned.cell_id: cell.planned.workload for cell in selection.cells}
    measured = [duration_of(folder.cell(r.name), r, workloads[r.cell_id]) for r in results.values()]
    known = Durations(measured)
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
    sums = f"{len(selection.cells)} cells: {done} done, {len(able)} to run"
    yield sums + (f", {skipped} this host cannot run" if skipped else "")
    remaining = [
        Remaining(
            cell.planned.cell_id,
            cell.planned.config_id,
            places[cell.planned.cell_id].width or slots,
            workload=cell.planned.workload,
        )
        for cell in able
    ]
    between_s = 0.0 if packed else between_cells_s(list(results.values()))
    yield _expectation(estimate(measured, remaining, slots, packed, between_s), able)


def _results(folder: SweepFolder, cells: Sequence[Cell]) -> dict[str, CellResult]:
    found: dict[str, CellResult] = {}
    for cell in cells:
        result = folder.cell(cell.planned.name).result_of(cell.planned.cell_id)
        if result is not None:
            found[cell.planned.cell_id] = result
    return found


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
        expected = known.of(planned.config_id, planned.workload, where.width)
        state = "to run"
        devices = "?" if where.width is None else str(where.width)
        takes = "?" if expected is None else duration(expected.seconds)
    return _row(planned.cell_id, devices, takes, state, varies, width, name)


def _expectation(found: Estimate | None, able: Sequence[Cell]) -> str:
    if not able:
        return "nothing is left to do"
    if found is None:
        return "expected time: unknown, as no cell of this folder has been run yet"
    return (
        f"expected time: {duration(found.seconds_left)} "
        f"(90 %: {duration(found.low_s)} to {duration(found.high_s)}), "
        f"from {found.measured_cells} cells done in this folder"
    )
