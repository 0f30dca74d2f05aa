"""Shards must be disjoint and cover the data; an earlier project's were not."""

import numpy as np
import pytest

from scalewise.analysis.balance import ShardAudit, audit_shards
from scalewise.records import ShardIndices


def audit(
    *indices: list[int] | np.ndarray, size: int, complete: bool = True, batch: int | None = None
) -> ShardAudit:
    shards = [
        ShardIndices(r, np.asarray(i, dtype=np.int64), size, complete)
        for r, i in enumerate(indices)
    ]
    return audit_shards(shards, len(shards), batch)


def test_disjoint_and_complete_is_sharded() -> None:
    order = np.random.default_rng(0).permutation(100)
    result = audit(order[0::4], order[1::4], order[2::4], order[3::4], size=100)
    assert result.verdict == "sharded"
    assert result.overlapping_samples == 0
    assert result.coverage == 1.0


def test_every_rank_training_on_all_data_is_named() -> None:
    rng = np.random.default_rng(1)
    orders = [rng.permutation(1000) for _ in range(4)]  # each rank shuffles for itself
    result = audit(*orders, size=1000)
    assert result.verdict == "every rank sees all data"
    assert result.is_fault
    assert "4 times" in result.explanation


def test_the_same_order_on_every_rank_is_named_before_the_epoch_ends() -> None:
    order = np.random.default_rng(2).permutation(1000)[:200]
    assert audit(order, order, size=1000, complete=False).verdict == "every rank sees all data"


def test_padding_of_a_distributed_sampler_is_no_overlap() -> None:
    # 10 samples on 4 ranks: padded to 12 with indices 0 and 1.
    result = audit([0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1], size=10)
    assert result.verdict == "sharded"
    assert result.overlapping_samples == 2


def test_partial_overlap_is_a_fault_with_its_size() -> None:
    result = audit(list(range(60)), list(range(50, 100)), size=100)
    assert result.verdict == "overlap"
    assert result.overlapping_samples == 10


def test_a_dropped_last_batch_is_allowed_and_a_hole_is_not() -> None:
    assert audit(range(0, 96, 2), range(1, 96, 2), size=100, batch=8).verdict == "sharded"
    hole = audit(range(0, 60, 2), range(1, 60, 2), size=100, batch=8)
    assert hole.verdict == "incomplete"
    assert "40 of 100" in hole.explanation


@pytest.mark.parametrize(("ranks", "twice"), [(2, 1), (2, 2), (4, 3), (4, 4)])
def test_overlap_is_allowed_up_to_the_padding_of_one_round(ranks: int, twice: int) -> None:
    """A distributed sampler pads its last round with at most one sample for each other rank."""
    own = [list(range(rank, 400, ranks)) for rank in range(ranks)]
    own[0] += [ranks * i + 1 for i in range(twice)]  # which rank 1 feeds too
    found = audit(*own, size=400)
    assert found.overlapping_samples == twice
    assert found.verdict == ("sharded" if twice < ranks else "overlap")


@pytest.mark.parametrize(("left_out", "verdict"), [(7, "sharded"), (8, "incomplete")])
def test_a_hole_is_allowed_below_one_global_batch(left_out: int, verdict: str) -> None:
    seen = range(100 - left_out)
    assert audit(seen[0::2], seen[1::2], size=100, batch=8).verdict == verdict


def test_an_epoch_cut_short_is_not_blamed_for_coverage() -> None:
    result = audit([0, 1], [2, 3], size=100, complete=False)
    assert result.verdict == "sharded"
    assert result.coverage is None


def test_a_rank_without_samples_is_a_fault() -> None:
    assert audit([0, 1, 2, 3], [], size=4).is_fault


def test_indices_nobody_recorded_are_no_fault() -> None:
    assert audit([], [], size=4).verdict == "not judged"


@pytest.mark.parametrize("ranks", [[], [0]])
def test_missing_ranks_are_not_judged(ranks: list[int]) -> None:
    shards = [ShardIndices(r, np.arange(5), 10, True) for r in ranks]
    assert audit_shards(shards, 2).verdict == "not judged"


def test_draws_with_replacement_are_not_judged_unless_all_ranks_draw_the_same() -> None:
    drawn = np.random.default_rng(3).integers(0, 100, size=(2, 80))
    found = audit(*drawn, size=100)
    assert found.verdict == "not judged"
    assert "with replacement" in found.explanation
    assert audit(drawn[0], drawn[0], size=100).verdict == "every rank sees all data"
