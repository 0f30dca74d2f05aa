"""The records of one cell read rank by rank; what is damaged is noted in words, and left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from scalewise.analysis.belonging import (
    foreign_config,
    foreign_metrics,
    foreign_provenance,
    foreign_steps,
    metrics_at_another_time,
    same_rows,
    steps_at_another_time,
)
from scalewise.records import (
    Attempt,
    CellFolder,
    CellResult,
    DeviceSeries,
    MetricRow,
    Provenance,
    RankSummary,
    RecordError,
    ShardIndices,
    StepSeries,
    read_device_series,
    read_metrics,
    read_shard,
    read_steps,
)

P = ParamSpec("P")
T = TypeVar("T")
RowCount = Literal["step_rows", "metric_rows"]

_IN_EVERY_CONFIG = ("model", "dataset", "strategy", "precision", "tracking")
"""Groups that every recorded configuration has, in their order: half a file is valid YAML too."""


def attempt(
    problems: list[str], read: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T | None:
    """What ``read`` returns, or None with the reason noted in ``problems``."""
    try:
        return read(*args, **kwargs)
    except RecordError as error:
        problems.append(str(error))
        return None


def read_attempts(folder: CellFolder, problems: list[str]) -> tuple[Attempt, ...]:
    """Tries without a result, oldest first."""
    attempts: list[Attempt] = []
    try:
        # extend() keeps what was read before a corrupt file.
        attempts.extend(folder.attempts())
    except (RecordError, ValueError) as error:
        problems.append(f"attempts: {error}")
    return tuple(attempts)


def read_config(folder: CellFolder, result: CellResult | None) -> dict[str, Any]:
    """The resolved configuration. Raises :class:`RecordError` also for a part of one, and for one
    that the result contradicts."""
    path, config = folder.path / "config.yaml", folder.load_config()
    absent = [key for key in _IN_EVERY_CONFIG if config.get(key) is None]
    if absent:
        raise RecordError(f"{path}: cut off: {', '.join(absent)} not there")
    _refuse(path, foreign_config(config, result) if result else "")
    return config


def read_provenance(folder: CellFolder, result: CellResult | None) -> Provenance:
    """Where it ran. Raises :class:`RecordError` also where the result contradicts it."""
    provenance = folder.load_provenance()
    fault = foreign_provenance(provenance, result) if result else ""
    _refuse(folder.path / "provenance.json", fault)
    return provenance


def read_rank_steps(
    folder: CellFolder, result: CellResult | None, problems: list[str]
) -> tuple[StepSeries, ...]:
    """One series a rank, in the order of ranks; those that cannot be used are absent."""
    series: list[StepSeries] = []
    ranks = set(folder.ranks_with_steps())
    for rank in sorted(ranks):
        one = attempt(problems, read_steps, folder.steps_path(rank), rank)
        if one is not None and _steps_are_own(one, folder, result, problems):
            series.append(one)
    copies = same_rows(series)
    for one, other in copies:
        problems.append(
            f"{folder.steps_path(other.rank)}: the same rows as rank{one.rank}.bin: one is a copy "
            "of the other; both are left out"
        )
    copied = {one.rank for pair in copies for one in pair}
    # Not of a cell that took no step at all: an examination of the devices.
    stepped = result is not None and any(rank.step_rows for rank in result.ranks)
    absent = sorted(set(range(result.world_size)) - ranks) if result and stepped else []
    if absent:
        problems.append(f"no step records of rank {', '.join(map(str, absent))}")
    return tuple(one for one in series if one.rank not in copied)


def _steps_are_own(
    steps: StepSeries, folder: CellFolder, result: CellResult | None, problems: list[str]
) -> bool:
    """Whether the rank may be measured by these steps; what is wrong with them is noted."""
    path = folder.steps_path(steps.rank)
    if steps.torn_bytes:
        problems.append(f"{path}: a torn end of {steps.torn_bytes} bytes was dropped")
    if result is None:
        return True
    fault = rows_fault(len(steps), rows_written(result.ranks, steps.rank, "step_rows"), "step rows")
    if fault:
        problems.append(f"{path}: {fault}")
    summary = _summary_of(result, steps.rank)
    if summary is None or not len(steps):
        return True
    # Of lost rows the sums are not what was counted: that is said already.
    foreign = "" if fault else foreign_steps(steps, summary)
    if foreign:
        problems.append(f"{path}: {foreign}: these are another's; they are left out")
        return False
    elsewhere = steps_at_another_time(steps, result)
    if elsewhere:
        problems.append(f"{path}: {elsewhere}")
    return True


def rows_fault(found: int, written: int, what: str) -> str:
    """That rows are lost, or more than their rank wrote; empty where all are there."""
    if found == written:
        return ""
    if found < written:
        return f"{found} of {written} {what} are there"
    return f"{found} {what} are there, of {written} that its rank wrote"


def rows_written(ranks: Sequence[RankSummary], rank: int, count: RowCount) -> int:
    """How many rows a rank says that it wrote."""
    return next((getattr(r, count) for r in ranks if r.rank == rank), 0)


def read_devices(folder: CellFolder, problems: list[str]) -> tuple[DeviceSeries, ...]:
    """One series a host."""
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
    for rank, path in _by_rank(folder.path / "metrics", "jsonl"):
        one = attempt(problems, read_metrics, path)
        if one is not None and _metrics_are_own(one, rank, path, result, problems):
            rows[rank] = tuple(one)
    problems += _absent_metrics(folder, result, lambda rank: rank == 0)
    return rows


def other_ranks_metrics_absent(folder: CellFolder, result: CellResult | None) -> list[str]:
    """A line for every file of a rank but the first that is gone.

    It leaves no figure in doubt: a loss that rank 0 alone tells of is called so.
    """
    return _absent_metrics(folder, result, lambda rank: rank != 0)


def _absent_metrics(
    folder: CellFolder, result: CellResult | None, of_rank: Callable[[int], bool]
) -> list[str]:
    paths = [
        (folder.metrics_path(one.rank), one.metric_rows)
        for one in (result.ranks if result else ())
        if one.metric_rows and of_rank(one.rank)
    ]
    return [f"{p}: {rows_fault(0, rows, 'rows')}" for p, rows in paths if not p.exists()]


def _metrics_are_own(
    rows: Sequence[MetricRow],
    rank: int,
    path: Path,
    result: CellResult | None,
    problems: list[str],
) -> bool:
    """Whether these are the rank's metrics; what is wrong with them is noted."""
    if result is None:
        return True
    fault = rows_fault(len(rows), rows_written(result.ranks, rank, "metric_rows"), "rows")
    if fault:
        problems.append(f"{path}: {fault}")
    summary = _summary_of(result, rank)
    if summary is None or not rows:
        return True
    foreign = "" if fault else foreign_metrics(rows, summary)
    if foreign:
        problems.append(f"{path}: {foreign}: these are another's; they are left out")
        return False
    elsewhere = metrics_at_another_time(rows, result, summary)
    if elsewhere:
        problems.append(f"{path}: {elsewhere}")
    return True


def read_rank_shards(folder: CellFolder, problems: list[str]) -> tuple[ShardIndices, ...]:
    """One of every rank that left an audit."""
    read = [
        attempt(problems, read_shard, path, rank)
        for rank, path in _by_rank(folder.path / "audit", "npz")
    ]
    return tuple(shard for shard in read if shard is not None)


def _refuse(path: Path, fault: str) -> None:
    if fault:
        raise RecordError(f"{path}: {fault}: it is another cell's; it is left out")


def _summary_of(result: CellResult, rank: int) -> RankSummary | None:
    return next((one for one in result.ranks if one.rank == rank), None)


def _by_rank(folder: Path, suffix: str) -> list[tuple[int, Path]]:
    """``rank<r>.<suffix>`` files of a folder with their ranks, in order."""
    names = [(p.stem.removeprefix("rank"), p) for p in folder.glob(f"rank*.{suffix}")]
    return sorted((int(number), path) for number, path in names if number.isdecimal())
