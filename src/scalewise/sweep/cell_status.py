"""Where one cell stands, read from its folder alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from scalewise.records import (
    CellFolder,
    CellResult,
    PlannedCell,
    RecordError,
    RunningAttempt,
    read_latest_sample,
)
from scalewise.records.cell import ALIVE_S
from scalewise.sweep.display import progress_of
from scalewise.sweep.measured import throughput_from

State = Literal["done", "running", "failed", "skipped", "interrupted", "waiting"]

UNFINISHED = ("running", "waiting", "interrupted")
"""States of cells that the sweep, or its resumption, still runs."""


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
    """Of a done cell: measured, warm-up excluded. Of a running one: since training began."""
    elapsed_s: float | None = None
    """Of a done cell: what it took."""
    seconds_left: float | None = None
    """Of a running cell, until its last step at its present pace."""
    memory: tuple[MemoryInUse, ...] = ()
    message: str = ""
    """Why there is no result."""
    problem: str = ""
    """What the step records of a done cell lack: its samples/s are in doubt, or not shown. Of a
    cell that may run: why nobody can tell."""
    swept: str = ""
    """What tells it from cells of the same name but for the repeat, e.g. ``lr=0.1``."""
    raised_at: str | None = None
    """Of a failed cell: ``file:line`` that raised."""
    log: str | None = None
    """Standard error of the rank that failed first."""


def read_cell(
    planned: PlannedCell, folder: CellFolder, now: float
) -> tuple[CellStatus, CellResult | None]:
    """The state of a cell at the Unix time ``now``, and its result where it is done."""
    try:
        result = folder.load_result_of(planned.cell_id)
    except RecordError as error:
        return _without_result(planned, folder, now, str(error)), None
    return _with_result(planned, folder, result), result


def _with_result(planned: PlannedCell, folder: CellFolder, result: CellResult) -> CellStatus:
    rate, problem = _measured(folder, result)
    steps = result.ranks[0].steps_completed if result.ranks else None
    return CellStatus(
        planned.name,
        planned.cell_id,
        planned.config_id,
        "done",
        result.world_size,
        step=steps,
        total_steps=steps,
        global_samples_per_s=rate,
        elapsed_s=result.took_s,
        seconds_left=0.0,
        memory=_memory(folder),
        problem=problem,
    )


def _measured(folder: CellFolder, result: CellResult) -> tuple[float | None, str]:
    """Global samples/s, and why a cell that took steps has none, or a doubtful one."""
    from scalewise.analysis.readings import read_rank_steps
    from scalewise.analysis.throughput import NotMeasuredError

    # The same reading and the same words as those of a report.
    faults: list[str] = []
    series = read_rank_steps(folder, result, faults)
    told = "; ".join(fault.replace(f"{folder.path}/", "") for fault in faults)
    try:
        rate = throughput_from(series, result.ranks)
    except NotMeasuredError as error:
        stepped = any(rank.step_rows for rank in result.ranks)
        return None, f"samples/s are not known: {told or error}" if stepped else told
    return rate, f"samples/s are in doubt: {told}" if told else ""


def _without_result(
    planned: PlannedCell, folder: CellFolder, now: float, unread: str
) -> CellStatus:
    """``unread`` says why there is no result to read."""
    from scalewise.analysis.blame import blame_last

    beat = folder.last_beat()
    attempt, problem = None, ""
    try:
        attempt = folder.read_running() if beat is not None else None
    except RecordError as error:
        problem = str(error).removeprefix(f"{folder.path}/")
    if beat is not None and attempt is not None and now - beat < ALIVE_S:
        return _under_way(planned, folder, attempt, now)
    cell = CellStatus(
        planned.name,
        planned.cell_id,
        planned.config_id,
        "waiting",
        planned.devices,
        problem=problem,
    )
    if attempt is not None:
        why = "its processes are gone, and nobody recorded why"
        return _as_far_as_it_came(replace(cell, message=why), folder, len(attempt.devices))
    if folder.has_result_file():
        torn = unread.removeprefix(f"{folder.path}/")
        why = f"it ended, but its result cannot be used: {torn}"
        return _as_far_as_it_came(replace(cell, message=why), folder, planned.devices or 0)
    attempts = tuple(folder.attempts())
    if not attempts:
        return cell
    found = blame_last(folder.path, attempts)
    return replace(
        cell,
        state=attempts[-1].outcome,
        message=attempts[-1].message,
        raised_at=found.at,
        log=None if found.log is None else str(found.log),
    )


def _as_far_as_it_came(cell: CellStatus, folder: CellFolder, width: int) -> CellStatus:
    """A cell that began and has to run again, with what is known of its last try."""
    progress = progress_of(cell.name, folder, width) if width else None
    known = progress is not None and progress.step > 0
    return replace(
        cell,
        state="interrupted",
        step=progress.step if progress is not None and known else None,
        total_steps=progress.total_steps if progress is not None and known else None,
        memory=_memory(folder),
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


def _memory(folder: CellFolder) -> tuple[MemoryInUse, ...]:
    """Of every device of the cell, in the order of their names; empty where none was sampled."""
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
