"""What a finished cell is worth, read from its records."""

from __future__ import annotations

from collections.abc import Sequence

from scalewise.records import CellFolder, RankSummary, RecordError, StepSeries, read_steps
from scalewise.records.fed import data_shards_of
from scalewise.records.rank_means import last_metrics
from scalewise.sweep.job import Outcome


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


def done(folder: CellFolder, cell_id: str, objective: str, told_before: bool) -> Outcome:
    """The outcome of a cell that is done: what its records say it is worth.

    Args:
        objective: the name of what its sweeper asked for.
        told_before: by an earlier run of the sweep, which said already what could not be measured.
    """
    result = folder.result_of(cell_id)
    if result is None:
        return Outcome("done", "its result cannot be read")
    wants_rate = objective == "global_samples_per_s"
    rate = None if told_before and not wants_rate else throughput_of(folder, result.ranks)
    if not wants_rate:
        value = last_metrics(result.ranks).get(objective)
        missing = _unmeasured(objective, result.ranks)
    else:
        from scalewise.analysis.rank_validity import invalid_ranks

        # The fastest of a search must not be the one that left out the work.
        invalid = next(invalid_ranks(result.ranks), None)
        value = None if invalid else rate
        why = f"as {invalid.reason}" if invalid else "the steps carry none"
        missing = f"sweep.objective: no global_samples_per_s, {why}"
    return Outcome("done", "" if told_before or value is not None else missing, value, rate)


def _unmeasured(objective: str, ranks: Sequence[RankSummary]) -> str:
    measured = [name for name, value in ranks[0].metrics.items() if value is not None]
    allowed = ", ".join([*sorted(measured), "global_samples_per_s"])
    return (
        f"sweep.objective: found {objective!r}, which this cell did not measure; allowed: {allowed}"
    )
