"""Where a sweep stands, read from its folder alone: it need not be running, nor on this host."""

from __future__ import annotations

import itertools
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from scalewise.analysis.blame import NOBODY, blame_last
from scalewise.analysis.labels import swept_words
from scalewise.records import (
    CellFolder,
    CellResult,
    PlannedCell,
    RecordError,
    RunningAttempt,
    SweepFolder,
    read_latest_sample,
)
from scalewise.records.cell import ALIVE_S
from scalewise.records.quarantine import QuarantinedDevice, load_quarantine
from scalewise.sweep.display import progress_of
from scalewise.sweep.estimate import Estimate, Measured, Remaining, estimate, places
from scalewise.sweep.measured import throughput_of

State = Literal["done", "running", "failed", "skipped", "interrupted", "waiting"]

UNFINISHED = ("running", "waiting", "interrupted")
"""States of cells that the sweep, or its resumption, still runs."""

_GAP_LIMIT_S = 10.0
"""A longer pause between two cells was not the engine's."""


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of one device of a cell, when it was last read."""

    device: str
    """``0`` for the GPU with index 0; ``rank0`` for the process of a rank on a CPU host."""
    used_mib: float | None
    total_mib: float | None


@dataclass(frozen=True)
class CellStatus:
    """One cell."""

    name: str
    cell_id: str
    config_id: str
    state: State
    devices: int | None
    """None while it is not known how many it will get."""
    step: int | None = None
    total_steps: int | None = None
    global_samples_per_s: float | None = None
    """Of a done cell: measured, warm-up excluded. Of a running one: since training began."""
    elapsed_s: float | None = None
    """Of a done cell: what it took."""
    seconds_left: float | None = None
    """Of a running cell, until its last step at its present pace."""
    memory: tuple[DeviceMemory, ...] = ()
    message: str = ""
    """Why there is no result."""
    swept: str = ""
    """What tells it from cells of the same name but for the repeat, e.g. ``lr=0.1``."""
    raised_at: str | None = None
    """Of a failed cell: ``file:line`` that raised."""
    log: str | None = None
    """Standard error of the rank that failed first."""


@dataclass(frozen=True)
class SweepStatus:
    """All cells of a sweep and when the last of them will have ended."""

    folder: str
    time: float
    """Unix time at which it was read."""
    policy: str
    cells: tuple[CellStatus, ...]
    estimate: Estimate | None
    """Of the cells that run, wait, or were interrupted and run again when the sweep is resumed;
    None if nothing tells yet."""
    quarantined: tuple[QuarantinedDevice, ...] = ()
    """Devices that get no more cells of this sweep."""

    @property
    def running(self) -> bool:
        return any(cell.state == "running" for cell in self.cells)

    def count(self) -> dict[str, int]:
        """Cells by state."""
        return dict(Counter(cell.state for cell in self.cells))


class StatusReader:
    """Reads a sweep again and again; cells that are done are read once.

    Args:
        folder: the sweep's. Raises :class:`RecordError` where it holds no plan.
    """

    def __init__(self, folder: Path) -> None:
        self.sweep = SweepFolder(folder)
        self._done: dict[str, tuple[CellStatus, CellResult]] = {}
        self.sweep.load_plan()

    def read(self, now: float | None = None) -> SweepStatus:
        """The state of every cell at the Unix time ``now``."""
        now = time.time() if now is None else now
        plan = self.sweep.load_plan()
        swept = swept_words(plan.cells)
        cells = tuple(
            replace(self._cell(planned, now), swept=swept[planned.cell_id])
            for planned in plan.cells
        )
        done = [c.cell_id for c in cells if c.state == "done"]
        results = [self._done[cell_id][1] for cell_id in done]
        widest = plan.slots or max((c.devices or 1 for c in cells), default=1)
        workloads = {planned.cell_id: planned.workload for planned in plan.cells}
        left = [_remaining(c, widest, workloads[c.cell_id]) for c in cells if c.state in UNFINISHED]
        slots, packed = places(left, plan.slots, plan.policy == "packed")
        expected = estimate(
            [
                Measured(r.config_id, r.finished_at - r.started_at, workloads[cell_id])
                for cell_id, r in zip(done, results, strict=True)
            ],
            left,
            slots,
            packed,
            between_s=0.0 if packed else between_cells_s(results),
        )
        return SweepStatus(
            str(self.sweep.path),
            now,
            plan.policy,
            cells,
            expected,
            load_quarantine(self.sweep.path).devices,
        )

    def _cell(self, planned: PlannedCell, now: float) -> CellStatus:
        if planned.cell_id in self._done:
            return self._done[planned.cell_id][0]
        folder = self.sweep.cell(planned.name)
        try:
            result = folder.load_result()
        except RecordError:
            return _without_result(planned, folder, now)
        status = _with_result(planned, folder, result)
        self._done[planned.cell_id] = (status, result)
        return status


def _with_result(planned: PlannedCell, folder: CellFolder, result: CellResult) -> CellStatus:
    return CellStatus(
        planned.name,
        planned.cell_id,
        planned.config_id,
        "done",
        result.world_size,
        step=result.ranks[0].steps_completed if result.ranks else None,
        total_steps=result.ranks[0].steps_completed if result.ranks else None,
        global_samples_per_s=throughput_of(folder, result.ranks),
        elapsed_s=result.finished_at - result.started_at,
        seconds_left=0.0,
        memory=_memory(folder),
    )


def _without_result(planned: PlannedCell, folder: CellFolder, now: float) -> CellStatus:
    beat = folder.last_beat()
    attempt = folder.load_running() if beat is not None else None
    if beat is not None and attempt is not None and now - beat < ALIVE_S:
        return _under_way(planned, folder, attempt, now)
    state: State = "waiting"
    message, found = "", NOBODY
    if attempt is not None:
        state, message = "interrupted", "its processes are gone, and nobody recorded why"
    else:
        attempts = tuple(folder.attempts())
        if attempts:
            state, message = attempts[-1].outcome, attempts[-1].message
            found = blame_last(folder.path, attempts)
    return CellStatus(
        planned.name,
        planned.cell_id,
        planned.config_id,
        state,
        planned.devices,
        message=message,
        raised_at=found.at,
        log=None if found.log is None else str(found.log),
    )


def _under_way(
    planned: PlannedCell, folder: CellFolder, attempt: RunningAttempt, now: float
) -> CellStatus:
    width = len(attempt.devices)
    progress = progress_of(planned.name, folder, width)
    return CellStatus(
        planned.name,
        planned.cell_id,
        planned.config_id,
        "running",
        width,
        step=progress.step,
        total_steps=progress.total_steps,
        global_samples_per_s=progress.global_samples_per_s,
        elapsed_s=now - attempt.started_at,
        seconds_left=progress.seconds_left,
        memory=_memory(folder),
    )


def _remaining(cell: CellStatus, slots: int, workload: str) -> Remaining:
    running = cell.state == "running"
    return Remaining(
        cell.cell_id,
        cell.config_id,
        cell.devices or slots,
        elapsed_s=cell.elapsed_s if running else None,
        steps_left_s=cell.seconds_left if running else None,
        workload=workload,
    )


def between_cells_s(results: Sequence[CellResult]) -> float:
    """The usual time from the end of a cell to the start of the next one's supervisor."""
    ordered = sorted(results, key=lambda r: r.started_at)
    gaps = [after.started_at - before.finished_at for before, after in itertools.pairwise(ordered)]
    own = [gap for gap in gaps if 0 <= gap < _GAP_LIMIT_S]
    return statistics.median(own) if own else 0.0


def _memory(folder: CellFolder) -> tuple[DeviceMemory, ...]:
    """Of every device of the cell, in the order of their names; empty where none was sampled."""
    found: list[DeviceMemory] = []
    for path in folder.device_series_paths():
        try:
            latest = read_latest_sample(path)
        except RecordError:
            continue  # being written for the first time, or damaged: the report says which
        for name, used in sorted(latest.memory_used_mib.items()) if latest is not None else ():
            assert latest is not None
            device = latest.devices.get(name)
            is_gpu = device is not None and device.id.startswith("GPU-")
            label = str(device.index) if device is not None and is_gpu else name
            total = None if device is None else device.memory_total_mib
            found.append(DeviceMemory(label, used, total))
    return tuple(found)
