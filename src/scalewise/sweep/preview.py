"""``sweep.dry_run=true``: what a sweep would run, and how long that would take."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from scalewise.config import ConfigError
from scalewise.gpu import HostMismatch
from scalewise.host import plural, tell
from scalewise.records import Ending, SweepFolder
from scalewise.sweep.auto import describe_rounds
from scalewise.sweep.engine import SweepReport, add_sweep_report
from scalewise.sweep.preflight import ThisHost
from scalewise.sweep.resume import Selection
from scalewise.sweep.status import CellStatus, Durations, waiting_cell
from scalewise.sweep.status_view import duration


def print_preview(
    sweep: SweepFolder, selection: Selection, host: ThisHost, packed: bool, later: Sequence[str],
    remarks: Sequence[str],
) -> None:  # fmt: skip
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

    done, known = set[str](), Durations()
    for planned in (cell.planned for cell in selection.cells):
        result = folder.cell(planned.name).find_result(planned.cell_id)
        if result is not None:
            done.add(planned.cell_id)
            known.add(planned.config_id, result.elapsed_s)
    done -= selection.rerun_ids
    able: list[CellStatus] = []
    refused: dict[str, str] = {}
    swept = swept_words([cell.planned for cell in selection.cells])
    rows = [("id", "devices", "expected", "state", "swept", "cell")]
    for cell in selection.cells:
        planned, number, takes, state = cell.planned, "", "", "done"
        name = planned.name
        if planned.cell_id not in done:
            try:
                devices = host(cell)
            except HostMismatch as mismatch:
                refused[planned.cell_id] = str(mismatch)
                state, name = "cannot", f"{name}: {mismatch}"
            else:
                able.append(waiting_cell(planned, devices))
                expected = known.of(planned.config_id)
                takes = "?" if expected is None else duration(expected)
                state, number = "to run", str(devices or "?")
        rows.append((planned.cell_id, number, takes, state, swept[planned.cell_id], name))
    rows += [("", "?", "?", "later", "", one) for one in later]
    total = len(selection.cells)
    ended = total - len(able) - len(refused)
    sums = f"{total} {plural(total, 'cell')}: {ended} done, {len(able)} to run"
    sums += f", {len(refused)} this host cannot run" if refused else ""
    lines = [*_table(rows), sums, *describe_rounds(selection.cells)]
    if not able:
        why = "nothing can run: see above what this host lacks"
        return [*lines, why if refused else "nothing is left to do"], refused
    left_s = known.seconds_left(able, host.slots() or 1, packed)
    takes = "unknown, as none of these cells is done yet" if left_s is None else duration(left_s)
    return [*lines, f"expected time: {takes}"], {}


def _table(rows: Sequence[tuple[str, str, str, str, str, str]]) -> Iterator[str]:
    """The rows below their titles, without the column of what was swept where nothing was."""
    width = max(len(row[4]) for row in rows) if any(row[4] for row in rows[1:]) else 0
    for cell_id, devices, expected, state, swept, name in rows:
        middle = f"{swept:{width}}  " if width else ""
        yield f"{cell_id:12}  {devices:>7}  {expected:>10}  {state:8}  {middle}{name}"
