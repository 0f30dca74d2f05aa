"""What the ranks of a cell were fed, counted once where ranks share their part of the data."""

from __future__ import annotations

from collections.abc import Sequence

from scalewise.records.rank import RankSummary


def sum_over_shards(fed: Sequence[int], data_shards: Sequence[int] | None) -> int:
    """Samples fed by all ranks, those of ranks that share a part of the data once."""
    return sum(dict(zip(data_shards or range(len(fed)), fed, strict=True)).values())


def data_shards_of(ranks: Sequence[RankSummary]) -> tuple[int, ...]:
    """The part of the data each rank fed, in the order of ranks."""
    ordered = sorted(ranks, key=lambda r: r.rank)
    return tuple(r.rank if r.data_shard is None else r.data_shard for r in ordered)


def batch_sizes_of(ranks: Sequence[RankSummary]) -> tuple[int, int] | None:
    """Samples of the largest step, of the largest rank and of all ranks, as they were fed.

    None where a rank recorded no step. A user's LightningDataModule decides on its own.
    """
    fed = [one.largest_step_samples or 0 for one in ranks]
    return (max(fed), sum_over_shards(fed, data_shards_of(ranks))) if all(fed) else None
