"""Runs that are not what they claim to be: their figures get no verdict, no cost and no rank.

A speedup is arithmetic on two rates. Where ranks fed the same data, counted something else than
samples, shared a GPU or trained nothing, the rates are right and the speedup means nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from scalewise.analysis.cells import Cell
from scalewise.analysis.contradictions import contradiction
from scalewise.analysis.loss import divergence
from scalewise.analysis.rank_validity import Invalid, invalid_ranks
from scalewise.analysis.shards import ShardAudit
from scalewise.records import MetricRow, RankSummary, StepSeries
from scalewise.records.fed import data_shards_of, sum_over_shards

_SHARD_FAULTS = ("every rank sees all data", "overlap", "not the same")


def invalid_run(
    cell: Cell, shards: ShardAudit | None, losses: Sequence[MetricRow]
) -> Iterator[Invalid]:
    """Every reason why the figures of a finished cell mean nothing.

    Args:
        cell: with its result.
        shards: what its ranks fed, judged; None for one rank.
        losses: of the run, as :mod:`scalewise.analysis.run_losses` has them.
    """
    if shards is not None and shards.verdict in _SHARD_FAULTS:
        yield Invalid("shards_overlap", shards.explanation)
    if cell.result is None:
        return
    yield from invalid_ranks(cell.result.ranks)
    miscounted = _miscounted(cell.steps, cell.result.ranks)
    if miscounted is not None:
        yield Invalid("sample_count", miscounted)
    contradicted = contradiction(cell.steps, cell.config)
    if contradicted is not None:
        yield Invalid("records_contradict", contradicted)
    diverged = divergence(losses)
    if diverged is not None:
        yield Invalid("loss_not_finite", diverged)


def _miscounted(series: Sequence[StepSeries], ranks: Sequence[RankSummary]) -> str | None:
    """Samples counted in a step against those its loaders were asked for, of all ranks.

    Counted is the largest step: the last one of an epoch may be smaller, and an epoch that is
    smaller than one batch has no other.
    """
    asked = [rank.loader_samples_per_step for rank in sorted(ranks, key=lambda r: r.rank)]
    known = [samples for samples in asked if samples is not None]
    if not known or len(known) < len(asked) or len(series) < len(asked):
        return None
    shards = data_shards_of(ranks)
    wanted = sum_over_shards(known, shards)
    rows = {one.rank: one.rows for one in series}
    shortest = min(len(one) for one in rows.values())
    fed = [rows[rank]["samples"][:shortest] for rank in sorted(rows)]
    by_shard: Mapping[int, npt.NDArray[np.int32]] = dict(zip(shards, fed, strict=True))
    counted = int(np.sum(list(by_shard.values()), axis=0).max(initial=0))
    epochs = rows[min(rows)]["epoch"]
    one_step_epochs = len(np.unique(epochs)) == len(epochs)
    if counted == wanted or (counted < wanted and one_step_epochs):
        return None
    return (
        f"{counted:,} samples a step were counted (the length of a batch's first tensor), but "
        f"the loaders' batch_size is {wanted:,} for all ranks: put the batch dimension first"
    )
