"""The records of one cell read rank by rank; what is damaged is noted in words, and left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from scalewise.records import (
    Attempt,
    CellFolder,
    CellResult,
    DeviceSeries,
    MetricRow,
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
    path, config = folder.path / "config.yaml", folder.load_config()
    absent = [key for key in _IN_EVERY_CONFIG if config.get(key) is None]
    if absent:
        raise RecordError(f"{path}: cut off: {', '.join(absent)} not there")
    return config


def read_rank_steps(
    folder: CellFolder, result: CellResult | None, problems: list[str]
) -> tuple[StepSeries, ...]:
    """One series a rank, in the order of ranks; those that cannot be used are absent."""
    series: list[StepSeries] = []
    ranks = set(folder.ranks_with_steps())
    for rank in sorted(ranks):
        one = attempt(problems, read_steps, folder.steps_path(rank), rank)
        if one is not None:
            path = folder.steps_path(rank)
            series.append(one)
            if one.torn_bytes:
                problems.append(f"{path}: a torn end of {one.torn_bytes} bytes was dropped")
            problems += _row_faults(path, len(one), result, rank, "step_rows")
    # Not of a cell that took no step at all: an examination of the devices.
    stepped = result is not None and any(rank.step_rows for rank in result.ranks)
    absent = sorted(set(range(result.world_size)) - ranks) if result and stepped else []
    if absent:
        problems.append(f"no step records of rank {', '.join(map(str, absent))}")
    return tuple(series)


def _row_faults(
    path: Path, found: int, result: CellResult | None, rank: int, count: RowCount
) -> list[str]:
    """That rows are lost, or more than the rank of a finished cell wrote; empty where all are."""
    if result is None:
        return []
    written = next((getattr(one, count) for one in result.ranks if one.rank == rank), 0)
    what = {"step_rows": "step rows", "metric_rows": "rows"}[count]
    if found < written:
        return [f"{path}: {found} of {written} {what} are there"]
    more = f"{path}: {found} {what} are there, of {written} that its rank wrote"
    return [more] if found > written else []


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
        if one is not None:
            rows[rank] = tuple(one)
            problems += _row_faults(path, len(one), result, rank, "metric_rows")
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
    paths = {
        one.rank: folder.metrics_path(one.rank)
        for one in (result.ranks if result else ())
        if of_rank(one.rank)
    }
    return [
        line
        for rank, path in paths.items()
        if not path.exists()
        for line in _row_faults(path, 0, result, rank, "metric_rows")
    ]


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
    return sorted((int(number), path) for number, path in names if number.isdecimal())
