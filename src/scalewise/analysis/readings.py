"""The records of one cell read rank by rank; what is damaged is noted in words, and left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np

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


def read_devices(folder: CellFolder, problems: list[str]) -> tuple[DeviceSeries, ...]:
    """One series a host."""
    series: list[DeviceSeries] = []
    for path in folder.device_series_paths():
        one = attempt(problems, read_device_series, path)
        if one is not None:
            series.append(one)
            problems += [f"{path}: {problem}" for problem in one.problems]
    return tuple(series)


def read_rank_metrics(folder: CellFolder, problems: list[str]) -> dict[int, tuple[MetricRow, ...]]:
    """Rank to its rows."""
    rows: dict[int, tuple[MetricRow, ...]] = {}
    for rank, path in _by_rank(folder.path / "metrics", "jsonl"):
        one = attempt(problems, read_metrics, path)
        if one is not None:
            rows[rank] = tuple(one)
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
