"""Reads how far a sweep is from its folder alone: it need not run, nor on this host."""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from scalewise.records import (
    UNFINISHED,
    CellFolder,
    CellResult,
    CellState,
    PlannedCell,
    Quarantine,
    QuarantinedDevice,
    RecordError,
    State,
    SweepFolder,
    cell_state,
    find_record,
    read_latest_sample,
)
from scalewise.sweep.display import progress_of
from scalewise.sweep.progress import Durations, Remaining


@dataclass(frozen=True)
class MemoryInUse:
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
    """Measured without warm-up for a done cell; since training began for a running one."""
    elapsed_s: float | None = None
    """Seconds that a done cell took, or a running one has run."""
    seconds_left: float | None = None
    """Seconds until the last step of a running cell at its present pace."""
    memory: tuple[MemoryInUse, ...] = ()
    message: str = ""
    """Why there is no result."""
    problem: str = ""
    """Why samples/s of a done cell are in doubt or missing, or nobody can tell whether it runs."""
    swept: str = ""
    """Overrides that tell it from cells of the same name but for the repeat, e.g. ``lr=0.1``."""
    raised_at: str | None = None
    """``file:line`` that raised, for a failed cell."""
    log: str | None = None
    """Standard error of the rank that failed first."""


def read_cell(
    planned: PlannedCell, folder: CellFolder, now: float
) -> tuple[CellStatus, CellResult | None]:
    """The status of a cell at the Unix time ``now``, and its result where it is done."""
    found = cell_state(folder, planned.cell_id, now)
    cell = CellStatus(
        planned.name,
        planned.cell_id,
        planned.config_id,
        found.state,
        planned.devices,
        message=found.message,
        problem=found.problem,
    )
    result = found.result
    if result is None:
        return _without_result(cell, planned, folder, found, now), None
    rate, problem = _measured(folder, result)
    steps = result.ranks[0].steps_completed if result.ranks else None
    done = replace(
        cell,
        devices=result.world_size,
        step=steps,
        total_steps=steps,
        global_samples_per_s=rate,
        elapsed_s=result.took_s,
        seconds_left=0.0,
        memory=_memory(folder),
        problem=problem,
    )
    return done, result


def _measured(folder: CellFolder, result: CellResult) -> tuple[float | None, str]:
    """Global samples/s, and why a cell that took steps has none, or a doubtful one."""
    from scalewise.analysis import read_cell_steps

    # The same reading and the same words as those of a report.
    figures = read_cell_steps(folder, result).figures
    told = "; ".join(figures.faults)
    if figures.throughput is None:
        stepped = any(rank.step_rows for rank in result.ranks)
        reason = told or figures.missing["throughput"]
        return None, f"samples/s are not known: {reason}" if stepped else told
    rate = figures.throughput.global_samples_per_s
    return rate, f"samples/s are in doubt: {told}" if told else ""


def _without_result(
    cell: CellStatus, planned: PlannedCell, folder: CellFolder, found: CellState, now: float
) -> CellStatus:
    from scalewise.analysis import blame_last

    blame = blame_last(folder.path, found.attempts)
    cell = replace(cell, raised_at=blame.at, log=None if blame.log is None else str(blame.log))
    if found.state not in ("running", "interrupted"):
        return cell
    devices = planned.devices if found.running is None else len(found.running.devices)
    cell = replace(cell, devices=devices, memory=_memory(folder))
    progress = progress_of(planned.name, folder, devices) if devices else None
    if progress is None or (found.state == "interrupted" and progress.step == 0):
        return cell
    cell = replace(cell, step=progress.step, total_steps=progress.total_steps)
    if found.state == "interrupted" or found.running is None:
        return cell
    return replace(
        cell,
        global_samples_per_s=progress.global_samples_per_s,
        elapsed_s=now - found.running.started_at,
        seconds_left=progress.seconds_left,
    )


def _memory(folder: CellFolder) -> tuple[MemoryInUse, ...]:
    """Memory of every device, in the order of their names; empty where none was sampled."""
    found: list[MemoryInUse] = []
    for path in folder.device_series_paths():
        try:
            latest = read_latest_sample(path)
        except RecordError:
            continue  # being written for the first time, or damaged: the report says which
        if latest is None:
            continue  # before its first sample
        for name, used in sorted(latest.memory_used_mib.items()):
            device = latest.devices.get(name)
            is_gpu = device is not None and device.id.startswith("GPU-")
            label = str(device.index) if device is not None and is_gpu else name
            total = None if device is None else device.memory_total_mib
            found.append(MemoryInUse(label, used, total))
    return tuple(found)


@dataclass(frozen=True)
class SweepStatus:
    """All cells of a sweep and when the last of them will have ended."""

    folder: str
    time: float
    """Unix time at which it was read."""
    policy: str
    cells: tuple[CellStatus, ...]
    seconds_left: float | None
    """Seconds for cells that run, wait, or run again when the sweep is resumed;
    None if nothing tells yet."""
    quarantined: tuple[QuarantinedDevice, ...] = ()
    """Devices that get no more cells of this sweep."""
    held: bool = False
    """Whether a process of this host runs the sweep, be it between two cells."""
    problems: tuple[str, ...] = ()
    """Files of the folder that could not be read, each with why."""

    @property
    def running(self) -> bool:
        return self.held or any(cell.state == "running" for cell in self.cells)

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
        from scalewise.analysis import swept_words

        now = time.time() if now is None else now
        plan = self.sweep.load_plan()
        swept = swept_words(plan.cells)
        cells = tuple(
            replace(self._cell(planned, now), swept=swept[planned.cell_id])
            for planned in plan.cells
        )
        durations = Durations()
        for cell in cells:
            if cell.state == "done":
                durations.add(cell.config_id, self._done[cell.cell_id][1].took_s)
        most = plan.slots or max((c.devices or 1 for c in cells), default=1)
        left = [
            Remaining(c.config_id, c.devices or most, c.elapsed_s, c.seconds_left)
            for c in cells
            if c.state in UNFINISHED
        ]
        quarantined: tuple[QuarantinedDevice, ...] = ()
        problems: tuple[str, ...] = ()
        try:
            quarantined = (find_record(self.sweep.path, Quarantine) or Quarantine()).devices
        except RecordError as error:
            problems = (f"which devices are quarantined is not known: {error}",)
        return SweepStatus(
            str(self.sweep.path),
            now,
            plan.policy,
            cells,
            durations.seconds_left(left, plan.slots, plan.policy == "packed"),
            quarantined,
            is_held(self.sweep.lock_path),
            problems,
        )

    def _cell(self, planned: PlannedCell, now: float) -> CellStatus:
        if planned.cell_id in self._done:
            return self._done[planned.cell_id][0]
        status, result = read_cell(planned, self.sweep.cell(planned.name), now)
        if result is not None:
            self._done[planned.cell_id] = (status, result)
        return status


def is_held(lock: Path) -> bool:
    """Whether a process has the lock of a sweep's folder; False where that cannot be asked.

    To ask is to share it for an instant, which the engine allows for.
    """
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)
    return False
