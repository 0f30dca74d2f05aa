"""``sweep.dry_run=true``: what a sweep would run, and how long that would take."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from scalewise.config import ConfigError
from scalewise.host import plural
from scalewise.records import CellResult, Ending, PlannedCell, SweepFolder, planned_cell_state
from scalewise.sweep.auto import describe_rounds
from scalewise.sweep.engine import SweepReport, add_sweep_report
from scalewise.sweep.plan import Cell
from scalewise.sweep.preflight import Place, ThisHost
from scalewise.sweep.resume import Selection
from scalewise.sweep.status import Durations, waiting_cell
from scalewise.sweep.status_view import duration


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
    lines, refused = preview(sweep, selection, host, packed, later)
    if refused and len(selection.cells) == 1:
        raise ConfigError(*refused.values())
    sys.stdout.write("".join(f"{line}\n" for line in [*lines, *remarks]))
    if refused:
        sys.stdout.flush()  # what nobody reads is no sweep that was interrupted
        skipped = {cell_id: Ending("skipped", "host", why) for cell_id, why in refused.items()}
        add_sweep_report(SweepReport(sweep.path, skipped, cells=list(selection.cells)))


def preview(
    folder: SweepFolder,
    selection: Selection,
    host: ThisHost,
    packed: bool,
    later: Sequence[str] = (),
) -> tuple[list[str], dict[str, str]]:
    """Lines, one a cell in the order of the plan with what varies among them, then the sums.

    And why this host cannot run what is left, by the id of each cell; empty where it can run some
    of it. ``later`` is what these cells decide, in words.
    """
    results = _results(folder, selection.cells)
    done = results.keys() - selection.rerun_ids
    to_run = [cell for cell in selection.cells if cell.planned.cell_id not in done]
    places = {cell.planned.cell_id: host(cell) for cell in to_run}
    refused = {cell_id: place.refusal for cell_id, place in places.items() if place.refusal}
    slots = host.slots()
    known = Durations()
    for result in results.values():
        known.add(result.config_id, result.took_s)
    varying = varying_overrides([cell.planned for cell in selection.cells])
    width = max(map(len, varying.values()), default=0)
    width = max(width, len("varies")) if width else 0
    lines = [_row("id", "devices", "expected", "state", "varies" if width else "", width, "cell")]
    for cell in selection.cells:
        where = places.get(cell.planned.cell_id)
        lines.append(_line(cell, where, known, varying[cell.planned.cell_id], width))
    lines += [_row("", "?", "?", "later", "", width, one) for one in later]
    able = [cell for cell in to_run if cell.planned.cell_id not in refused]
    total = len(selection.cells)
    sums = f"{total} {plural(total, 'cell')}: {total - len(to_run)} done, {len(able)} to run"
    lines.append(sums + (f", {len(refused)} this host cannot run" if refused else ""))
    lines += describe_rounds(selection.cells)
    if not able:
        why = "nothing can run: see above what this host lacks"
        return [*lines, why if to_run else "nothing is left to do"], refused
    remaining = [
        waiting_cell(cell.planned, places[cell.planned.cell_id].devices or slots) for cell in able
    ]
    left_s = known.seconds_left(remaining, slots, packed)
    unknown = "unknown, as none of these cells is done yet"
    return [*lines, f"expected time: {unknown if left_s is None else duration(left_s)}"], {}


def _results(folder: SweepFolder, cells: Sequence[Cell]) -> dict[str, CellResult]:
    read = ((c.planned.cell_id, planned_cell_state(folder, c.planned).result) for c in cells)
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
        devices = "?" if where.devices is None else str(where.devices)
        takes = "?" if expected is None else duration(expected)
    return _row(planned.cell_id, devices, takes, state, varies, width, name)
