"""Which samples the ranks fed: disjoint, complete, or not sharded at all.

A sampler that was never applied makes every rank train on all the data: the run then takes as
long as on one device and "scales" at 1/N, while each epoch feeds every sample N times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from scalewise.records import ShardIndices

ShardVerdict = Literal[
    "sharded", "replicated", "every rank sees all data", "overlap", "incomplete", "not the same",
    "not judged",
]  # fmt: skip


@dataclass(frozen=True)
class ShardAudit:
    """What the first epoch of all ranks looked like together."""

    verdict: ShardVerdict
    explanation: str
    """One line with its numbers."""
    dataset_size: int | None = None
    overlapping_samples: int | None = None
    """Distinct dataset indices that more than one rank fed."""
    coverage: float | None = None
    """Share of the data fed by some rank; None unless the epoch was complete on every rank."""

    @property
    def is_fault(self) -> bool:
        return self.verdict in (
            "every rank sees all data",
            "overlap",
            "incomplete",
            "not the same",
        )


def audit_shards(
    shards: Sequence[ShardIndices], world_size: int, global_batch_size: int | None = None
) -> ShardAudit:
    """Judge the first epoch of ``world_size`` ranks from the indices they fed.

    Allowed are up to ``world_size - 1`` samples in two shards (a distributed sampler pads the
    last round) and less than a global batch left out (a dropped last batch).
    """
    if sorted(s.rank for s in shards) != list(range(world_size)):
        have = ", ".join(str(s.rank) for s in shards) or "none"
        return ShardAudit("not judged", f"indices of rank {have} were recorded, of {world_size}")
    size = shards[0].dataset_size
    different = _different_within_a_shard(shards)
    if different is not None:
        return ShardAudit("not the same", different, size)
    shards = _one_rank_a_shard(shards)
    world_size = len(shards)
    if world_size == 1:
        text = "all ranks fed the same samples, as this strategy means them to"
        return ShardAudit("replicated", text, size)
    unique = [np.unique(s.indices) for s in shards]
    if not any(len(u) for u in unique):
        return ShardAudit("not judged", "no rank recorded which samples it fed", size)
    if any(len(u) == 0 for u in unique):
        empty = ", ".join(str(s.rank) for s, u in zip(shards, unique, strict=True) if not len(u))
        return ShardAudit("incomplete", f"rank {empty} fed no sample at all", size)
    seen, ranks_each = np.unique(np.concatenate(unique), return_counts=True)
    overlap = int((ranks_each > 1).sum())
    complete = all(s.epoch_complete for s in shards)
    coverage = len(seen) / size if complete else None
    return _judge(shards, overlap, len(seen), size, coverage, global_batch_size)


def _one_rank_a_shard(shards: Sequence[ShardIndices]) -> list[ShardIndices]:
    first: dict[int, ShardIndices] = {}
    for one in shards:
        first.setdefault(one.rank if one.data_shard is None else one.data_shard, one)
    return list(first.values())


def _different_within_a_shard(shards: Sequence[ShardIndices]) -> str | None:
    """What is wrong where ranks that hold parts of one model did not feed it the same samples."""
    first: dict[int, ShardIndices] = {}
    for one in shards:
        if one.data_shard is None:
            continue
        other = first.setdefault(one.data_shard, one)
        if not np.array_equal(one.indices, other.indices):
            return (
                f"rank {one.rank} and rank {other.rank} hold parts of one replica, but fed it "
                "different samples"
            )
    return None


def _judge(
    shards: Sequence[ShardIndices],
    overlap: int,
    seen: int,
    size: int,
    coverage: float | None,
    global_batch_size: int | None,
) -> ShardAudit:
    world_size = len(shards)
    allowed = global_batch_size if global_batch_size is not None else world_size
    if overlap > world_size - 1:
        everything = coverage is not None and all(
            len(np.unique(s.indices)) > size - allowed for s in shards
        )
        same_order = all(np.array_equal(s.indices, shards[0].indices) for s in shards)
        if everything or same_order:
            text = (
                f"each of {world_size} ranks fed the same {overlap:,} samples of {size:,}: the "
                f"sampler does not shard, an epoch costs {world_size} times what it should"
            )
            return ShardAudit("every rank sees all data", text, size, overlap, coverage)
        repeated = sum(len(s.indices) - len(np.unique(s.indices)) for s in shards)
        if repeated > world_size - 1:
            text = f"samples were drawn with replacement ({repeated:,} repeats within a rank)"
            return ShardAudit("not judged", text, size)
        text = f"{overlap:,} of {seen:,} samples were fed by more than one rank"
        return ShardAudit("overlap", text, size, overlap, coverage)
    if coverage is not None and size - seen >= max(allowed, world_size):
        text = f"{size - seen:,} of {size:,} samples were fed by no rank in a complete epoch"
        return ShardAudit("incomplete", text, size, overlap, coverage)
    covered = f"{coverage:.1%} of the data" if coverage is not None else "epoch not complete"
    text = f"{world_size} shards share {overlap} samples; {covered}"
    return ShardAudit("sharded", text, size, overlap, coverage)
