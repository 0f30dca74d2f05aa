"""The records of one cell read rank by rank; what is damaged is noted in words, and left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from scalewise.records import (
    Attempt,
    CellFolder,
    CellResult,
    DeviceSeries,
    MetricRow,
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


def read_config(folder: CellFolder) -> dict[str, Any]:
    """The resolved configuration. Raises :class:`RecordError` also for a part of one."""
    config = folder.load_config()
    absent = [key for key in _IN_EVERY_CONFIG if config.get(key) is None]
    if absent:
        raise RecordError(f"{folder.path / 'config.yaml'}: cut off: {', '.join(absent)} not there")
    return config


def read_rank_steps(
    folder: CellFolder, result: CellResult | None, problems: list[str]
) -> tuple[StepSeries, ...]:
    """One series a rank, in the order of ranks; those that cannot be used are absent."""
    series: list[StepSeries] = []
    ranks = set(folder.ranks_with_steps())
    for rank in sorted(ranks):
        path = folder.steps_path(rank)
        one = attempt(problems, read_steps, path, rank)
        if one is None:
            continue
        if one.torn_bytes:
            problems.append(f"{path}: a torn last row of {one.torn_bytes} bytes was dropped")
        written = rows_written(result.ranks, rank, "step_rows") if result else 0
        fault = rows_fault(len(one), written, "step rows") if result else ""
        if fault:
            problems.append(f"{path}: {fault}")
        series.append(one)
    # Not of a cell that took no step at all: an examination of the devices.
    stepped = result is not None and any(rank.step_rows for rank in result.ranks)
    absent = sorted(set(range(result.world_size)) - ranks) if result and stepped else []
    if absent:
        problems.append(f"no step records of rank {', '.join(map(str, absent))}")
    return tuple(series)


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
        if one is None:
            continue
        rows[rank] = tuple(one)
        written = rows_written(result.ranks, rank, "metric_rows") if result else 0
        fault = rows_fault(len(one), written, "rows") if result else ""
        if fault:
            problems.append(f"{path}: {fault}")
    # Of the others a file is no matter of course: a loss of rank 0 alone is called so.
    first = folder.metrics_path(0)
    written = rows_written(result.ranks, 0, "metric_rows") if result else 0
    if written and not first.exists():
        problems.append(f"{first}: {rows_fault(0, written, 'rows')}")
    return rows


def read_rank_shards(folder: CellFolder, problems: list[str]) -> tuple[ShardIndices, ...]:
    """One of every rank that left an audit."""
    read = [
        attempt(problems, read_shard, path, rank)
        for rank, path in _by_rank(folder.path / "audit", "npz")
    ]
    return tuple(shard for shard in read if shard is not None)


def _by_rank(folder: Path, suffix: str) -> list[tuple[int, Path]]:
    """``rank<r>.<suffix>`` files of a folder with their ranks, in order."""
    names = [(p.stem.removeprefix("rank"), p) for p in folder.glob(f"rank*.{suffix}")]
    return sorted((int(number), path) for number, path in names if number.isdigit())
