"""A sweep folder read into frozen values: what ended how, and everything it left behind.

A record that is torn, corrupt or absent becomes a ``problem`` in words on its cell. Reading
never fails because one cell is damaged: the rest of the sweep still has to be reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np

from scalewise.records import (
    Attempt,
    CellFolder,
    CellResult,
    DeviceSeries,
    MetricRow,
    PlannedCell,
    Provenance,
    RecordError,
    ShardIndices,
    StepSeries,
    StrategyDecision,
    SweepFolder,
    TrackingRecord,
    load_decision,
    read_device_series,
    read_metrics,
    read_shard,
    read_steps,
)
from scalewise.records.batch_search import BatchSearchRecord, load_batch_search
from scalewise.records.cell import ALIVE_S
from scalewise.records.heartbeat import read_heartbeat
from scalewise.records.imported import ImportedResult, load_imported
from scalewise.records.profile import WindowProfile, load_profiles
from scalewise.records.quarantine import Quarantine, load_quarantine

CellState = Literal["done", "failed", "skipped", "interrupted", "unfinished"]
"""``unfinished`` is a cell that still runs or has not started; ``interrupted`` is also one whose
processes are gone without a word."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Cell:
    """One cell of a sweep and all its records that could be read."""

    planned: PlannedCell
    path: Path
    state: CellState
    config: Mapping[str, Any] | None
    """The resolved configuration; None if it could not be read."""
    result: CellResult | None
    """Present if and only if ``state`` is ``done``."""
    provenance: Provenance | None
    steps: tuple[StepSeries, ...] = ()
    """One series a rank, in the order of ranks; ranks whose file is unreadable are absent."""
    devices: tuple[DeviceSeries, ...] = ()
    """One series a host."""
    metrics: Mapping[int, tuple[MetricRow, ...]] = field(default_factory=dict)
    """Rank to its rows."""
    shards: tuple[ShardIndices, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    """Tries without a result, oldest first."""
    under_way: str = ""
    """Of a try that has neither result nor record of its end: whether it lives, and how far it is.
    Empty where there is none."""
    tracking: TrackingRecord | None = None
    imported: ImportedResult | None = None
    """A published line for the same configuration; None where there is none."""
    decision: StrategyDecision | None = None
    """Why it was trained with this strategy; None where that was asked for by name."""
    batch_search: BatchSearchRecord | None = None
    """The search that it is, or that found its batch size; None where that was typed."""
    profiles: tuple[WindowProfile, ...] = ()
    """What a profiler saw, one a rank, in cells made for it."""
    problems: tuple[str, ...] = ()
    """What is missing or damaged, one line each."""

    @property
    def failure(self) -> str:
        """Why there is no result, in one line; empty for a cell that is done."""
        if self.state == "done":
            return ""
        if self.under_way:
            return self.under_way
        if self.attempts:
            return self.attempts[-1].message
        return "no record of its end: still running, not started, or nothing could be written"


@dataclass(frozen=True)
class Sweep:
    """Every cell of a sweep, in the order of its plan."""

    path: Path
    command: tuple[str, ...]
    """What the user typed; empty if the plan could not be read."""
    order_seed: int | None
    created_at: float | None
    """Unix time."""
    cells: tuple[Cell, ...]
    problems: tuple[str, ...] = ()
    quarantined: tuple[str, ...] = ()
    """Devices that the sweep put aside, with the evidence, one line each."""

    def in_state(self, state: CellState) -> tuple[Cell, ...]:
        return tuple(c for c in self.cells if c.state == state)


def load_sweep(path: Path | str) -> Sweep:
    """Read the sweep (or the single cell) in the folder ``path``.

    Raises :class:`RecordError` only where there is nothing to read at all.
    """
    folder = SweepFolder(path)
    if not folder.path.is_dir():
        raise RecordError(f"{path}: no such folder; give the folder of a sweep")
    problems: list[str] = []
    if not folder.plan_path.exists() and (folder.path / "config.yaml").exists():
        return _single_cell(CellFolder(folder.path))
    plan = _attempt(problems, folder.load_plan)
    if plan is not None:
        cells = tuple(load_cell(cell, planned) for planned, cell in folder.cells())
        aside = _attempt(problems, load_quarantine, folder.path) or Quarantine()
        return Sweep(
            folder.path,
            plan.command,
            plan.order_seed,
            plan.created_at,
            cells,
            tuple(problems),
            tuple(str(device) for device in aside.devices),
        )
    found = sorted(p.parent for p in folder.path.glob("*/config.yaml"))
    if not found and folder.plan_path.exists():
        raise RecordError(f"{problems[0]}; and no cell lies beside it")
    if not found:
        raise RecordError(
            f"{path}: found neither sweep.json nor folders with a config.yaml; "
            "give the folder of a sweep, e.g. multirun/<sweep>"
        )
    problems.append("the plan is lost: cells that never started are not listed")
    cells = tuple(load_cell(CellFolder(p), None) for p in found)
    said = tuple(problem.replace(f"{folder.path}/", "") for problem in problems)
    return Sweep(folder.path, (), None, None, cells, said)


def load_cell(folder: CellFolder, planned: PlannedCell | None) -> Cell:
    """Read one cell; ``planned`` is None where no plan tells what was asked for."""
    problems: list[str] = []
    attempts = _attempts(folder, problems)
    result: CellResult | None = None
    if (folder.path / "result.json").exists():
        result = _attempt(problems, folder.load_result)
    state, under_way = _state(folder, result, attempts)
    started = (folder.path / "provenance.json").exists() or result is not None
    config = _attempt(problems, folder.load_config)
    tracking = _attempt(problems, folder.load_tracking)
    return Cell(
        planned=planned or _as_planned(folder, result),
        path=folder.path,
        state=state,
        config=config,
        result=result,
        provenance=_attempt(problems, folder.load_provenance) if started else None,
        steps=_steps(folder, result, problems),
        devices=_device_series(folder, problems),
        metrics=_metrics(folder, problems),
        shards=_shards(folder, problems),
        attempts=attempts,
        under_way=under_way,
        tracking=tracking,
        imported=_attempt(problems, load_imported, folder.path),
        decision=_attempt(problems, load_decision, folder.path),
        batch_search=_attempt(problems, load_batch_search, folder.path),
        profiles=_attempt(problems, load_profiles, folder) or (),
        # Told by the cell's own paths: a report may travel, the machine's folders stay here.
        problems=tuple(problem.replace(f"{folder.path}/", "") for problem in problems),
    )


def _state(
    folder: CellFolder, result: CellResult | None, attempts: Sequence[Attempt]
) -> tuple[CellState, str]:
    """The state, and of a try whose end nobody recorded what can be said of it now."""
    if result is not None:
        return "done", ""
    running, beat = folder.load_running(), folder.last_beat()
    last = attempts[-1] if attempts else None
    if running is None or beat is None or (last is not None and last.number >= running.number):
        return (last.outcome if last is not None else "unfinished"), ""
    heartbeat = read_heartbeat(folder.heartbeat_path(0))
    steps = "" if heartbeat is None else f"; last seen after {heartbeat.step} steps"
    if time.time() - beat < ALIVE_S:
        return "unfinished", f"still running, or gone for less than {ALIVE_S:g} s{steps}"
    gone = "its processes are gone and left no reason (SIGKILL, os._exit, a host that went down)"
    return "interrupted", f"{gone}{steps}"


def _single_cell(folder: CellFolder) -> Sweep:
    cell = load_cell(folder, None)
    command = cell.provenance.command if cell.provenance else ()
    return Sweep(folder.path, command, None, None, (cell,))


def _as_planned(folder: CellFolder, result: CellResult | None) -> PlannedCell:
    """What can be said of a cell that stands in no plan: without a result it repeats nothing."""
    if result is None:
        return PlannedCell(folder.name, folder.name, folder.name, (), 0, None)
    return PlannedCell(
        result.cell_id, result.config_id, folder.name, (), result.repeat, result.world_size
    )


def _attempt(
    problems: list[str], read: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T | None:
    """What ``read`` returns, or None with the reason noted in ``problems``."""
    try:
        return read(*args, **kwargs)
    except RecordError as error:
        problems.append(str(error))
        return None


def _attempts(folder: CellFolder, problems: list[str]) -> tuple[Attempt, ...]:
    attempts: list[Attempt] = []
    try:
        # extend() keeps what was read before a corrupt file.
        attempts.extend(folder.attempts())
    except (RecordError, ValueError) as error:
        problems.append(f"attempts: {error}")
    return tuple(attempts)


def _steps(
    folder: CellFolder, result: CellResult | None, problems: list[str]
) -> tuple[StepSeries, ...]:
    series: list[StepSeries] = []
    ranks = set(folder.ranks_with_steps())
    for rank in sorted(ranks):
        path = folder.steps_path(rank)
        one = _attempt(problems, read_steps, path, rank)
        if one is None:
            continue
        if one.torn_bytes:
            problems.append(f"{path}: a torn last row of {one.torn_bytes} bytes was dropped")
        written = next((r.step_rows for r in result.ranks if r.rank == rank), 0) if result else 0
        if len(one) < written:
            problems.append(f"{path}: {len(one)} of {written} step rows are there")
        if len(one) and (np.diff(one.rows["step"]) != 1).any():
            problems.append(f"{path}: the steps do not follow one another; they are left out")
            continue
        series.append(one)
    # Not of a cell that took no step at all: an examination of the devices.
    stepped = result is not None and any(rank.step_rows for rank in result.ranks)
    absent = sorted(set(range(result.world_size)) - ranks) if result and stepped else []
    if absent:
        problems.append(f"no step records of rank {', '.join(map(str, absent))}")
    return tuple(series)


def _device_series(folder: CellFolder, problems: list[str]) -> tuple[DeviceSeries, ...]:
    series: list[DeviceSeries] = []
    for path in folder.device_series_paths():
        one = _attempt(problems, read_device_series, path)
        if one is not None:
            series.append(one)
            problems += [f"{path}: {problem}" for problem in one.problems]
    return tuple(series)


def _metrics(folder: CellFolder, problems: list[str]) -> dict[int, tuple[MetricRow, ...]]:
    rows: dict[int, tuple[MetricRow, ...]] = {}
    for rank, path in _by_rank(folder.path / "metrics", "jsonl"):
        one = _attempt(problems, read_metrics, path)
        if one is not None:
            rows[rank] = tuple(one)
    return rows


def _shards(folder: CellFolder, problems: list[str]) -> tuple[ShardIndices, ...]:
    read = [
        _attempt(problems, read_shard, path, rank)
        for rank, path in _by_rank(folder.path / "audit", "npz")
    ]
    return tuple(shard for shard in read if shard is not None)


def _by_rank(folder: Path, suffix: str) -> list[tuple[int, Path]]:
    """``rank<r>.<suffix>`` files of a folder with their ranks, in order."""
    names = [(p.stem.removeprefix("rank"), p) for p in folder.glob(f"rank*.{suffix}")]
    return sorted((int(number), path) for number, path in names if number.isdigit())
