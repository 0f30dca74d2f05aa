"""``sweep.dry_run=true``: what a sweep would run, and how long that would take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scalewise.hardware import HardwareConfig
from scalewise.records import CellResult, PlannedCell, SweepFolder
from scalewise.sweep.display import duration
from scalewise.sweep.estimate import Durations, Estimate, Remaining, estimate
from scalewise.sweep.finished_times import duration_of
from scalewise.sweep.lease import Host, HostMismatch, discover, width
from scalewise.sweep.plan import Cell
from scalewise.sweep.resume import Selection
from scalewise.sweep.status import between_cells_s


@dataclass(frozen=True)
class Place:
    """Where a cell would run."""

    width: int | None
    """Devices; None where only the host that runs it will tell."""
    refusal: str = ""
    """Why it cannot run here; empty if it can."""


class ThisHost:
    """Where cells would run here."""

    def __init__(self) -> None:
        self._hosts: dict[str, Host | HostMismatch] = {}
        self._asked: dict[int, tuple[HardwareConfig, Host | HostMismatch]] = {}
        """By identity: thousands of cells share one, and to write it out takes its time."""

    def __call__(self, cell: Cell) -> Place:
        hardware = cell.request.cell.hardware
        if id(hardware) not in self._asked:
            self._asked[id(hardware)] = (hardware, self._discovered(hardware))
        host = self._asked[id(hardware)][1]
        if isinstance(host, HostMismatch):
            return Place(None, str(host))
        try:
            return Place(width(cell.request.cell, len(host.slots)))
        except HostMismatch as mismatch:
            return Place(None, str(mismatch))

    def _discovered(self, hardware: HardwareConfig) -> Host | HostMismatch:
        key = repr(hardware)
        if key not in self._hosts:
            try:
                self._hosts[key] = discover(hardware)
            except HostMismatch as mismatch:
                self._hosts[key] = mismatch
        return self._hosts[key]

    def slots(self) -> int:
        """The most devices that any cell asked about so far could get."""
        return max((len(h.slots) for h in self._hosts.values() if isinstance(h, Host)), default=1)

    def models(self) -> set[str]:
        """The devices of those hosts."""
        hosts = [host for host in self._hosts.values() if isinstance(host, Host)]
        return {slot.name for host in hosts for slot in host.slots}


class Cluster(ThisHost):
    """Where cells would run on a cluster: what they ask for."""

    def __call__(self, cell: Cell) -> Place:
        return Place(cell.planned.devices)


def preview(
    folder: SweepFolder,
    selection: Selection,
    host: ThisHost,
    packed: bool,
    left_open: Sequence[str] = (),
) -> Iterator[str]:
    """Lines: one a cell in the order of the plan, with what varies among them, then the sums.

    ``left_open`` is what these cells decide, in words.
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
    for later in left_open:
        yield _row("", "?", "?", "later", "", width, later)
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
