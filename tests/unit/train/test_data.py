"""Which samples go into which batch of which rank."""

from __future__ import annotations

import pytest

from scalewise.train.data import GlobalBatchSampler, ShardBatchSampler
from scalewise.train.recording import BatchSizes

SIZE, BATCH = 103, 12


def batches(world: int, epoch: int = 0, seed: int = 7) -> list[list[list[int]]]:
    """For each rank, its batches of an epoch."""
    ranks = []
    for rank in range(world):
        sampler = GlobalBatchSampler(SIZE, BatchSizes((BATCH // world,) * world), rank, seed)
        sampler.sampler.set_epoch(epoch)
        ranks.append(list(sampler))
        assert len(ranks[-1]) == len(sampler)
    return ranks


@pytest.mark.parametrize(("world", "epoch"), [(2, 0), (3, 5), (12, 1)])
def test_the_ranks_batches_together_are_the_single_devices_batch(world: int, epoch: int) -> None:
    (alone,) = batches(1, epoch)
    shares = batches(world, epoch)
    together = [[i for rank in step for i in rank] for step in zip(*shares, strict=True)]
    assert together == alone


def test_an_epoch_feeds_each_sample_at_most_once_and_drops_the_incomplete_batch() -> None:
    fed = [i for rank in batches(3) for batch in rank for i in batch]
    assert len(fed) == len(set(fed)) == SIZE // BATCH * BATCH
    assert set(fed) <= set(range(SIZE))


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size: found 104 samples a step, but the training"):
        GlobalBatchSampler(SIZE, BatchSizes((52,) * 2), 0, 0)


@pytest.mark.parametrize("size", [1, 10, 101])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_evaluation_shares_are_disjoint_and_cover(size: int, world: int) -> None:
    samplers = [ShardBatchSampler(size, 4, rank, world) for rank in range(world)]
    shares = [[i for batch in sampler for i in batch] for sampler in samplers]
    assert sorted(i for share in shares for i in share) == list(range(size))
    assert [len(list(s)) for s in samplers] == [len(s) for s in samplers]
    assert all(len(batch) <= 4 for sampler in samplers for batch in sampler)


@pytest.mark.parametrize("batch_size", [1, 4, 8])
@pytest.mark.parametrize(("size", "world"), [(33, 2), (3, 2), (101, 4), (4, 4)])
def test_ranks_that_score_together_get_as_many_batches(
    size: int, world: int, batch_size: int
) -> None:
    samplers = [ShardBatchSampler(size, batch_size, rank, world, True) for rank in range(world)]
    ranks = [list(sampler) for sampler in samplers]
    assert len({len(rank) for rank in ranks}) == 1
    assert [len(s) for s in samplers] == [len(rank) for rank in ranks]
    assert sorted(i for rank in ranks for batch in rank for i in batch) == list(range(size))
    sizes = [len(batch) for rank in ranks for batch in rank]
    assert min(sizes) >= 1
    assert max(sizes) <= max(2, batch_size)
