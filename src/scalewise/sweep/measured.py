"""What a finished cell is worth, read from its records."""

from __future__ import annotations

from collections.abc import Mapping

from scalewise.analysis.throughput import NotMeasuredError, measure_throughput
from scalewise.records import CellFolder, RecordError, read_steps


def throughput_of(folder: CellFolder, world_size: int) -> float | None:
    """Global samples/s of a run; None where its records do not carry it."""
    try:
        series = [read_steps(folder.steps_path(rank), rank) for rank in range(world_size)]
        return measure_throughput(series, world_size).global_samples_per_s
    except (RecordError, NotMeasuredError):
        return None


def batch_sizes_of(folder: CellFolder, world_size: int) -> tuple[int, int] | None:
    """Samples of the largest step, of the largest rank and of all ranks, as they were fed.

    None where the step records do not tell. A user's LightningDataModule decides on its own.
    """
    try:
        series = [read_steps(folder.steps_path(rank), rank) for rank in range(world_size)]
    except RecordError:
        return None
    fed = [int(one.rows["samples"].max(initial=0)) for one in series]
    return (max(fed), sum(fed)) if all(fed) else None


def objective_of(
    name: str, metrics: Mapping[str, float | None], throughput: float | None
) -> float | None:
    """What a cell returns to Hydra's sweeper; None if it was not measured."""
    return throughput if name == "global_samples_per_s" else metrics.get(name)
