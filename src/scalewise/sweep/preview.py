"""``sweep.dry_run=true``: what a sweep would run, and how long that would take."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from scalewise.config import ConfigError
from scalewise.gpu import HostMismatch
from scalewise.host import plural, tell
from scalewise.records import CellResult, Ending, SweepFolder
from scalewise.sweep.auto import describe_rounds
from scalewise.sweep.engine import SweepReport, add_sweep_report
from scalewise.sweep.plan import Cell
from scalewise.sweep.preflight import ThisHost
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
    tell("\n".join([*lines, *remarks]))
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
    """Lines, one a cell in the order of the plan with what was swept, then the sums.

    And why this host cannot run what is left, by the id of each cell; empty where it can run some
    of it. ``later`` is what these cells decide, in words.
    """
    from scalewise.analysis import swept_words

    results = _results(folder, selection.cells)
    done = results.keys() - selection.rerun_ids
    to_run = [cell for cell in selection.cells if cell.planned.cell_id not in done]
    devices: dict[str, int | None] = {}
    refused: dict[str, str] = {}
    for cell in to_run:
        try:
            devices[cell.planned.cell_id] = host(cell)
        except HostMismatch as mismatch:
            refused[cell.planned.cell_id] = str(mismatch)
    slots = host.slots()
    known = Durations()
    for result in results.values():
        known.add(result.config_id, result.elapsed_s)
    swept = swept_words([cell.planned for cell in selection.cells])
    width = max(map(len, swept.values()), default=0)
    width = max(width, len("swept")) if width else 0
    lines = [_row("id", "devices", "expected", "state", "swept" if width else "", width, "cell")]
    for planned in (cell.planned for cell in selection.cells):
        cell_id, takes, state, name = planned.cell_id, "", "done", planned.name
        if cell_id in refused:
            state, name = "cannot", f"{name}: {refused[cell_id]}"
        elif cell_id in devices:
            expected = known.of(planned.config_id)
            state, takes = "to run", "?" if expected is None else duration(expected)
        number = str(devices[cell_id] or "?") if cell_id in devices else ""
        lines.append(_row(cell_id, number, takes, state, swept[cell_id], width, name))
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
        waiting_cell(cell.planned, devices[cell.planned.cell_id] or slots) for cell in able
    ]
    left_s = known.seconds_left(remaining, slots, packed)
    takes = "unknown, as none of these cells is done yet" if left_s is None else duration(left_s)
    return [*lines, f"expected time: {takes}"], {}


def _results(folder: SweepFolder, cells: Sequence[Cell]) -> dict[str, CellResult]:
    cells_by_id = {c.planned.cell_id: folder.cell(c.planned.name) for c in cells}
    read = ((cell_id, cell.find_result(cell_id)) for cell_id, cell in cells_by_id.items())
    return {cell_id: result for cell_id, result in read if result is not None}


def _row(
    cell_id: str, devices: str, expected: str, state: str, swept: str, width: int, name: str
) -> str:
    """``width`` is that of the column of what was swept; without one there is no such column."""
    middle = f"{swept:{width}}  " if width else ""
    return f"{cell_id:12}  {devices:>7}  {expected:>10}  {state:8}  {middle}{name}"
