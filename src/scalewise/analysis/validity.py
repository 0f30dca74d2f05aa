"""Runs that are not what they claim to be: their figures get no verdict, no cost and no rank.

A speedup is arithmetic on two rates. Where ranks fed the same data, counted something else than
samples, shared a GPU or trained nothing, the rates are right and the speedup means nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scalewise.analysis.cells import Cell
from scalewise.analysis.contradictions import contradiction
from scalewise.analysis.loss import divergence
from scalewise.analysis.rank_validity import Invalid, invalid_ranks
from scalewise.analysis.shards import ShardAudit
from scalewise.records import MetricRow

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
    contradicted = contradiction(cell.steps, cell.config)
    if contradicted is not None:
        yield Invalid("records_contradict", contradicted)
    diverged = divergence(losses)
    if diverged is not None:
        yield Invalid("loss_not_finite", diverged)
