"""One figure of what several ranks recorded of the same step, each of its own samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from scalewise.records.metric_rows import MetricRow
from scalewise.records.rank import RankSummary

RowKey = tuple[int, int]
"""Step, and how many rows of that step came before."""

_OF_OWN_SAMPLES = frozenset({"train_loss"})
"""Metrics that each rank records of its own samples alone, also in rows that do not count them."""


class RowKeys:
    """The keys by which the rows of one rank, taken in order, find those of the others."""

    def __init__(self) -> None:
        self._last: RowKey | None = None

    def key(self, row: MetricRow) -> RowKey:
        """The key of the next row."""
        again = self._last is not None and self._last[0] == row.step
        self._last = (row.step, self._last[1] + 1 if again and self._last else 0)
        return self._last


def keyed(rows: Iterable[MetricRow]) -> Iterator[tuple[RowKey, MetricRow]]:
    """The rows of one rank in order, each with its key."""
    keys = RowKeys()
    return ((keys.key(row), row) for row in rows)


def weights_of(name: str, rows: Sequence[MetricRow]) -> tuple[float, ...] | None:
    """By how much the metric ``name`` of each of ``rows``, one a rank, counts in their mean.

    By the samples of the step. What is of no one step (a validation score that a user's module
    does not reduce over the ranks) counts alike, as in Lightning's own ``sync_dist``. None where
    samples decide and the records, older ones, do not tell them.
    """
    counts = [row.step_samples for row in rows]
    known = tuple(float(count) for count in counts if count is not None)
    if len(known) == len(rows):
        return known
    return None if name in _OF_OWN_SAMPLES else (1.0,) * len(rows)


def mean_over_ranks(
    values: Sequence[float | None], weights: Sequence[float] | None
) -> float | None:
    """The mean of one metric over ranks, weighted; None if any rank's is, which is not finite.

    Values that agree (ranks that hold one replica together, scores that were reduced over the
    ranks) stay what they are to the last bit, and need no ``weights``.

    Raises ValueError for values that differ without a weight above 0.
    """
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    if len(set(known)) == 1:
        return known[0]
    if weights is None or sum(weights) <= 0:
        raise ValueError(f"weights: found {weights} for values that differ; give one a value")
    pairs = zip(known, weights, strict=True)
    return sum(value * weight for value, weight in pairs) / sum(weights)


def last_metrics(ranks: Sequence[RankSummary]) -> dict[str, float | None]:
    """The last value of each metric, over all ranks that have one.

    A loss that each rank has of its own samples is weighted by those of the whole run: they are in
    the proportion of a step's, but for a short last batch of an epoch.
    """
    found: dict[str, float | None] = {}
    for name in dict.fromkeys(name for one in ranks for name in one.metrics):
        having = [one for one in ranks if name in one.metrics]
        fed = tuple(float(one.samples_fed) for one in having)
        alike = (1.0,) * len(having)
        weights = fed if name in _OF_OWN_SAMPLES and sum(fed) > 0 else alike
        found[name] = mean_over_ranks([one.metrics[name] for one in having], weights)
    return found
