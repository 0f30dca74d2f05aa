"""What the metrics of several ranks come to, as soon as all of them have recorded a step."""

from __future__ import annotations

from scalewise.records import MetricRow
from scalewise.records.rank_means import RowKey, RowKeys, mean_over_ranks, weights_of


class RankMeans:
    """Matches the rows of all ranks, whichever of them come first."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._keys: dict[int, RowKeys] = {}
        self._waiting: dict[RowKey, dict[int, MetricRow]] = {}

    def add(self, rank: int, row: MetricRow) -> dict[str, float]:
        """One more row of ``rank``, in order; returns the means if it was the last of its step.

        A metric has a mean if every rank has recorded it and it is finite on all of them. A loss of
        unknown numbers of samples (older records) has none, unless all ranks agree on it.
        """
        key = self._keys.setdefault(rank, RowKeys()).key(row)
        rows = self._waiting.setdefault(key, {})
        rows[rank] = row
        if len(rows) < self._world_size:
            return {}
        return _means([one for _, one in sorted(self._waiting.pop(key).items())])


def _means(rows: list[MetricRow]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in rows[0].values:
        if not all(name in row.values for row in rows):
            continue
        values, weights = [row.values[name] for row in rows], weights_of(name, rows)
        if weights is None and len(set(values)) > 1:
            continue
        mean = mean_over_ranks(values, weights)
        if mean is not None:
            found[name] = mean
    return found
