"""A sweep folder read into frozen values (:mod:`scalewise.analysis.cells`).

A record that is torn, corrupt or absent becomes a ``problem`` in words on its cell. Reading
never fails because one cell is damaged: the rest of the sweep still has to be reported.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from scalewise.analysis.cells import Cell, CellState, Sweep
from scalewise.analysis.own_optimizer import name_own_optimizers
from scalewise.analysis.readings import (
    attempt,
    other_ranks_metrics_absent,
    read_attempts,
    read_config,
    read_devices,
    read_rank_metrics,
    read_rank_shards,
    read_rank_steps,
)
from scalewise.records import (
    Attempt,
    CellFolder,
    CellResult,
    PlannedCell,
    RecordError,
    SweepFolder,
    load_decision,
)
from scalewise.records.batch_search import load_batch_search
from scalewise.records.cell import ALIVE_S
from scalewise.records.heartbeat import read_heartbeat
from scalewise.records.imported import load_imported
from scalewise.records.profile import load_profiles
from scalewise.records.quarantine import Quarantine, load_quarantine


def sweep_folder(path: Path | str) -> SweepFolder:
    """The folder ``path``, whatever lies in it. Raises :class:`RecordError` where there is none."""
    folder = SweepFolder(path)
    if not folder.path.is_dir():
        raise RecordError(f"{path}: no such folder; give the folder of a sweep")
    return folder


def no_sweep(path: Path | str) -> str:
    """What is said of a folder in which no sweep lies."""
    return (
        f"{path}: found neither sweep.json nor folders with a config.yaml; "
        "give the folder of a sweep, e.g. multirun/<sweep>"
    )


def load_sweep(path: Path | str) -> Sweep:
    """Read the sweep (or the single cell) in the folder ``path``.

    Raises :class:`RecordError` only where there is nothing to read at all.
    """
    folder = sweep_folder(path)
    problems: list[str] = []
    if not folder.plan_path.exists() and (folder.path / "config.yaml").exists():
        return _single_cell(CellFolder(folder.path))
    plan = attempt(problems, folder.load_plan)
    if plan is not None:
        cells = name_own_optimizers(load_cell(cell, planned) for planned, cell in folder.cells())
        aside = attempt(problems, load_quarantine, folder.path) or Quarantine()
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
        raise RecordError(no_sweep(path))
    problems.append("the plan is lost: cells that never started are not listed")
    cells = name_own_optimizers(load_cell(CellFolder(p), None) for p in found)
    said = tuple(problem.replace(f"{folder.path}/", "") for problem in problems)
    return Sweep(folder.path, (), None, None, cells, said)


def load_cell(folder: CellFolder, planned: PlannedCell | None) -> Cell:
    """Read one cell; ``planned`` is None where no plan tells what was asked for."""
    problems: list[str] = []
    of_result: list[str] = []
    of_steps: list[str] = []
    of_metrics: list[str] = []
    attempts = read_attempts(folder, problems)
    result = _read_result(folder, planned, of_result)
    state, under_way = _state(folder, result, attempts, problems)
    started = (folder.path / "provenance.json").exists() or result is not None
    config = attempt(problems, read_config, folder)
    tracking = attempt(problems, folder.load_tracking)
    steps = read_rank_steps(folder, result, of_steps)
    metrics = read_rank_metrics(folder, result, of_metrics)
    problems += other_ranks_metrics_absent(folder, result)

    def told(found: Sequence[str]) -> tuple[str, ...]:
        # By the cell's own paths: a report may travel, the machine's folders stay here.
        return tuple(problem.replace(f"{folder.path}/", "") for problem in found)

    return Cell(
        planned=planned or _as_planned(folder, result),
        path=folder.path,
        state=state,
        config=config,
        result=result,
        provenance=attempt(problems, folder.load_provenance) if started else None,
        steps=steps,
        devices=read_devices(folder, problems),
        metrics=metrics,
        shards=read_rank_shards(folder, problems),
        attempts=attempts,
        under_way=under_way,
        tracking=tracking,
        imported=attempt(problems, load_imported, folder.path),
        decision=attempt(problems, load_decision, folder.path),
        batch_search=attempt(problems, load_batch_search, folder.path),
        profiles=attempt(problems, load_profiles, folder) or (),
        problems=told([*of_result, *problems, *of_steps, *of_metrics]),
        result_fault="".join(told(of_result)),
        step_faults=told(of_steps),
        metric_faults=told(of_metrics),
    )


def _read_result(
    folder: CellFolder, planned: PlannedCell | None, problems: list[str]
) -> CellResult | None:
    """The cell's own result: one that another cell left is nothing of this one's."""
    if not folder.has_result_file():
        return None
    if planned is None:
        return attempt(problems, folder.load_result)
    return attempt(problems, folder.load_result_of, planned.cell_id)


def _state(
    folder: CellFolder,
    result: CellResult | None,
    attempts: Sequence[Attempt],
    problems: list[str],
) -> tuple[CellState, str]:
    """The state, and of a try whose end nobody recorded what can be said of it now."""
    if result is not None:
        return "done", ""
    running, beat = attempt(problems, folder.read_running), folder.last_beat()
    last = attempts[-1] if attempts else None
    if running is None or beat is None or (last is not None and last.number >= running.number):
        return (last.outcome if last is not None else "unfinished"), ""
    heartbeat = attempt(problems, read_heartbeat, folder.heartbeat_path(0))
    steps = "" if heartbeat is None else f"; last seen after {heartbeat.step} steps"
    if time.time() - beat < ALIVE_S:
        return "unfinished", f"still running, or gone for less than {ALIVE_S:g} s{steps}"
    gone = "its processes are gone and left no reason (SIGKILL, os._exit, a host that went down)"
    return "interrupted", f"{gone}{steps}"


def _single_cell(folder: CellFolder) -> Sweep:
    (cell,) = name_own_optimizers([load_cell(folder, None)])
    command = cell.provenance.command if cell.provenance else ()
    return Sweep(folder.path, command, None, None, (cell,))


def _as_planned(folder: CellFolder, result: CellResult | None) -> PlannedCell:
    """What can be said of a cell that stands in no plan: without a result it repeats nothing."""
    if result is None:
        return PlannedCell(folder.name, folder.name, folder.name, (), 0, None)
    return PlannedCell(
        result.cell_id, result.config_id, folder.name, (), result.repeat, result.world_size
    )
