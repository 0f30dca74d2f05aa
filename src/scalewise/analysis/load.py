"""A sweep folder read into frozen values (:mod:`scalewise.analysis.model`).

A record that is torn, corrupt or absent becomes a ``problem`` in words on its cell: the rest of the
sweep still has to be reported.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from scalewise.analysis.model import CellRecords, Sweep
from scalewise.analysis.step_figures import CellSteps, leave_out_warmup, measure_steps
from scalewise.host import plural, usable_cores
from scalewise.records import (
    ALIVE_S,
    CellFolder,
    CellResult,
    DeviceSeries,
    Ending,
    ImportedResult,
    MetricRow,
    PlannedCell,
    RecordError,
    StepSeries,
    StrategyDecision,
    SweepFolder,
    cell_state,
    find_record,
    load_profiles,
    numbered_files,
    read_device_series,
    read_heartbeat,
    read_metrics,
    read_shard,
    read_steps,
    sweeps_in,
    typed_anew,
    unpacked,
)


def name_own_optimizers(cells: Iterable[CellRecords]) -> tuple[CellRecords, ...]:
    """Each with the optimizer that its module built, or that of a finished cell with its model."""
    told = [(cell, _own_optimizer(cell), repr((cell.config or {}).get("model"))) for cell in cells]
    found = {model: own for _, own, model in reversed(told) if own is not None}
    return tuple(_named(cell, own or found.get(model)) for cell, own, model in told)


def _own_optimizer(cell: CellRecords) -> str | None:
    """Class of what the module built; None where it built nothing, or nobody knows yet."""
    ranks = cell.result.ranks if cell.result else ()
    return next((rank.own_optimizer for rank in ranks if rank.own_optimizer is not None), None)


def _named(cell: CellRecords, own: str | None) -> CellRecords:
    if own is None or cell.config is None:
        return cell
    asked = [word for word in cell.planned.overrides if _OF_OPTIMIZER.match(word)]
    unused = f"{' '.join(asked)} was not used: the model built its own optimizer ({own})"
    return replace(
        cell,
        config={**cell.config, "optimizer": {"name": f"its own ({own})"}},
        problems=(*cell.problems, unused) if asked and cell.result else cell.problems,
    )


P = ParamSpec("P")
T = TypeVar("T")
_OF_OPTIMIZER = re.compile(r"[+~]*optimizer(\.|=|$)")
RowCount = Literal["step_rows", "metric_rows"]
_IN_EVERY_CONFIG = ("model", "dataset", "strategy", "precision", "tracking")
"""Groups that every recorded configuration has, in their order: half a file is valid YAML too."""
_UNTOLD = "no record of its end: still running, not started, or nothing could be written"


def attempt(
    problems: list[str], read: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T | None:
    """What ``read`` returns, or None with the reason noted in ``problems``."""
    try:
        return read(*args, **kwargs)
    except RecordError as error:
        problems.append(str(error))
        return None


def read_attempts(folder: CellFolder, problems: list[str]) -> tuple[Ending, ...]:
    attempts: list[Ending] = []
    try:
        # extend() keeps what was read before a corrupt file.
        attempts.extend(folder.attempts())
    except (RecordError, ValueError) as error:
        problems.append(f"attempts: {error}")
    return tuple(attempts)


def read_config(folder: CellFolder) -> dict[str, Any]:
    """The resolved configuration. Raises :class:`RecordError` also for a part of one."""
    path, config = folder.path / "config.yaml", folder.load_config()
    absent = [key for key in _IN_EVERY_CONFIG if config.get(key) is None]
    if absent:
        raise RecordError(f"{path}: cut off: {', '.join(absent)} not there")
    return config


def read_cell_steps(folder: CellFolder, result: CellResult | None) -> CellSteps:
    """The steps of a cell with their figures; ranks whose file cannot be used are absent."""
    faults: list[str] = []
    series: Sequence[StepSeries] = tuple(_read_ranks(folder, result, faults))
    warm_up = None
    if result is not None:
        series, warm_up = leave_out_warmup(series, result.world_size)
    figures = measure_steps(series, result, warm_up, _without_path(folder.path, faults))
    return CellSteps(folder, figures)


def _read_ranks(
    folder: CellFolder, result: CellResult | None, problems: list[str]
) -> Iterator[StepSeries]:
    ranks = set(folder.ranks_with_steps())
    for rank in sorted(ranks):
        path = folder.steps_path(rank)
        one = attempt(problems, read_steps, path, rank)
        if one is not None:
            if one.torn_bytes:
                problems.append(f"{path}: a torn end of {one.torn_bytes} bytes was dropped")
            problems += _row_faults(path, len(one), result, rank, "step_rows")
            yield one
    absent = sorted(set(range(result.world_size)) - ranks) if result else []
    if absent:
        problems.append(f"no step records of rank {', '.join(map(str, absent))}")


def _row_faults(
    path: Path, found: int, result: CellResult | None, rank: int, count: RowCount
) -> list[str]:
    """That rows are lost, or more than the rank of a finished cell wrote; empty where all are."""
    if result is None:
        return []
    written = next((getattr(one, count) for one in result.ranks if one.rank == rank), 0)
    what = "step rows" if count == "step_rows" else "rows"
    lost = f"{path}: {found} of {written} {what} are there"
    more = f"{path}: {found} {what} are there, of {written} that its rank wrote"
    return [lost if found < written else more] * (found != written)


def read_devices(folder: CellFolder, problems: list[str]) -> tuple[DeviceSeries, ...]:
    series: list[DeviceSeries] = []
    for path in folder.device_series_paths():
        one = attempt(problems, read_device_series, path)
        if one is not None:
            series.append(one)
            problems += [f"{path}: {problem}" for problem in one.problems]
    return tuple(series)


def read_rank_metrics(
    folder: CellFolder, result: CellResult | None, problems: list[str]
) -> dict[int, tuple[MetricRow, ...]]:
    """Rank to its rows; of a finished cell, rows that are lost are noted."""
    rows: dict[int, tuple[MetricRow, ...]] = {}
    for rank in folder.ranks_with_metrics():
        path = folder.metrics_path(rank)
        one = attempt(problems, read_metrics, path)
        if one is not None:
            rows[rank] = tuple(one)
            problems += _row_faults(path, len(one), result, rank, "metric_rows")
    return rows


def sweep_folder(path: Path | str) -> SweepFolder:
    """The folder ``path``, whatever lies in it. Raises :class:`RecordError` where there is none."""
    folder = SweepFolder(path)
    if not folder.path.is_dir():
        absent = "no such zip;" if folder.path.suffix == ".zip" else "no such folder;"
        found = "found a file; unpack it, and" if folder.path.exists() else absent
        raise RecordError(f"{path}: {found} give the folder of a sweep")
    return folder


def no_sweep(path: Path | str, unpacked_as: Path | None = None) -> str:
    """What is said of a folder, or of an archive, that is no sweep."""
    inside = sweeps_in(unpacked_as or Path(path))
    if inside:
        more = "unpack it, and " if unpacked_as not in (None, path) else ""
        return (
            f"{path}: found {len(inside)} {plural(len(inside), 'sweep')} in it, e.g. "
            f"{inside[-1].name}; {more}give the folder of a sweep"
        )
    return (
        f"{path}: found neither sweep.json nor folders with a config.yaml; "
        "give the folder of a sweep, e.g. multirun/<sweep>"
    )


def load_sweep(path: Path | str) -> Sweep:
    """Read the sweep (or the single cell) in the folder or the archive ``path``.

    Raises :class:`RecordError` only where there is nothing to read at all.
    """
    given = Path(path)
    found = unpacked(given)
    sweep = _load_folder(sweep_folder(found), given)
    return sweep if found == given else replace(sweep, archive=given)


def _load_folder(folder: SweepFolder, given: Path) -> Sweep:
    problems: list[str] = []
    if not folder.plan_path.exists() and (folder.path / "config.yaml").exists():
        (cell,) = name_own_optimizers([load_cell(CellFolder(folder.path), None)])
        command = cell.provenance.command if cell.provenance else ()
        return Sweep(folder.path, command, None, None, (cell,))
    plan = attempt(problems, folder.load_plan)
    if plan is not None:
        cells = _load_cells((cell, one) for one, cell in folder.cells())
        return Sweep(
            folder.path, plan.command, plan.order_seed, plan.created_at, cells, tuple(problems)
        )
    found = sorted(p.parent for p in folder.path.glob("*/config.yaml") if not p.parent.is_symlink())
    if not found and folder.plan_path.exists():
        raise RecordError(f"{problems[0]}; and no cell lies beside it")
    if not found:
        raise RecordError(no_sweep(given, folder.path))
    problems.append("the plan is lost: cells that never started are not listed")
    cells = _load_cells((CellFolder(p), None) for p in found)
    return Sweep(folder.path, (), None, None, cells, _without_path(folder.path, problems))


def _without_path(folder: Path, problems: Iterable[str]) -> tuple[str, ...]:
    """By the folder's own paths: a report may travel, the machine's folders stay here."""
    return tuple(problem.replace(f"{folder}/", "") for problem in problems)


_MOST_THREADS = 4
"""Each holds the columns of a cell: some 200 bytes a row."""


def _load_cells(cells: Iterable[tuple[CellFolder, PlannedCell | None]]) -> tuple[CellRecords, ...]:
    """Cells side by side: numpy and zlib let other threads run meanwhile."""
    with ThreadPoolExecutor(min(_MOST_THREADS, len(usable_cores()))) as pool:
        found = name_own_optimizers(pool.map(lambda each: load_cell(*each), cells))
    done = [cell.planned for cell in found if cell.result is not None]
    return tuple(replace(c, ending=typed_anew(c.planned, c.ending, done)) for c in found)


def load_cell(folder: CellFolder, planned: PlannedCell | None) -> CellRecords:
    """Read one cell; ``planned`` is None where no plan tells what was asked for."""
    problems: list[str] = []
    of_metrics: list[str] = []
    found = cell_state(folder, planned.cell_id if planned else None, time.time())
    attempts, result = read_attempts(folder, problems), found.result
    problems += [found.problem] if found.problem else []
    failure = found.ending.message or _UNTOLD
    if found.state == "running":
        failure = f"still running, or gone for less than {ALIVE_S:g} s"
    if found.running is not None:
        heartbeat = attempt(problems, read_heartbeat, folder.heartbeat_path(0))
        failure += "" if heartbeat is None else f"; last seen after {heartbeat.step} steps"
    started = (folder.path / "provenance.json").exists() or result is not None
    # A script's fit that ended before it could tell what it is made of lacks nothing.
    unbegun = planned is not None and planned.cell_id == planned.name and not started
    config = None if unbegun else attempt(problems, read_config, folder)
    tracking = attempt(problems, folder.load_tracking)
    steps = read_cell_steps(folder, result)
    of_steps = steps.figures.faults
    audits = numbered_files(folder.path / "audit", "rank", ".npz")
    shards = [attempt(problems, read_shard, path, rank) for rank, path in audits]
    metrics = read_rank_metrics(folder, result, of_metrics)
    for rank in range(result.world_size) if result else ():
        path = folder.metrics_path(rank)
        if not path.exists():
            # Without the other ranks no figure is in doubt: a loss of rank 0 alone is called so.
            gone = problems if rank else of_metrics
            gone += _row_faults(path, 0, result, rank, "metric_rows")

    return CellRecords(
        planned=planned or _as_planned(folder, result),
        path=folder.path,
        ending=replace(found.ending, message="" if result is not None else failure),
        config=config,
        result=result,
        provenance=attempt(problems, folder.load_provenance) if started else None,
        steps=steps,
        warm_up=steps.figures.warm_up,
        devices=read_devices(folder, problems),
        metrics=metrics,
        shards=tuple(shard for shard in shards if shard is not None),
        attempts=attempts,
        tracking=tracking,
        imported=attempt(problems, find_record, folder.path, ImportedResult),
        decision=attempt(problems, find_record, folder.path, StrategyDecision),
        profiles=attempt(problems, load_profiles, folder) or (),
        problems=_without_path(
            folder.path, filter(None, (found.result_fault, *problems, *of_steps, *of_metrics))
        ),
        result_fault=found.result_fault,
        step_faults=of_steps,
        metric_faults=_without_path(folder.path, of_metrics),
    )


def _as_planned(folder: CellFolder, result: CellResult | None) -> PlannedCell:
    """What can be said of a cell that stands in no plan: without a result it repeats nothing."""
    if result is None:
        return PlannedCell(folder.name, folder.name, folder.name, (), 0, None)
    return PlannedCell(
        result.cell_id, result.config_id, folder.name, (), result.repeat, result.world_size
    )
