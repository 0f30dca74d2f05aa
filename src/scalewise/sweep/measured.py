"""What a finished cell is worth, read from its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scalewise.records import CellFolder, RankSummary, RecordError, StepSeries, read_steps
from scalewise.records.fed import data_shards_of


def throughput_of(folder: CellFolder, ranks: Sequence[RankSummary]) -> float | None:
    """Global samples/s of a run; None where its records do not carry it."""
    from scalewise.analysis.throughput import NotMeasuredError

    try:
        series = [read_steps(folder.steps_path(rank), rank) for rank in range(len(ranks))]
        return throughput_from(series, ranks)
    except (RecordError, NotMeasuredError):
        return None


def throughput_from(series: Sequence[StepSeries], ranks: Sequence[RankSummary]) -> float:
    """Global samples/s of a run, by the steps of its ranks.

    Raises analysis' NotMeasuredError where they do not carry it.
    """
    from scalewise.analysis.throughput import measure_throughput

    return measure_throughput(series, len(ranks), data_shards_of(ranks)).global_samples_per_s


def objective_of(
    name: str, metrics: Mapping[str, float | None], throughput: float | None
) -> float | None:
    """What a cell returns to Hydra's sweeper; None if it was not measured."""
    return throughput if name == "global_samples_per_s" else metrics.get(name)
