"""Settings of strategies, what they refuse, and how they share out a batch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from fakes.small_fit import composed_cell
from scalewise.config import (
    KINDS,
    ConfigError,
    conf_dir,
    whole_samples,
)
from scalewise.train.data import GlobalBatchSampler
from scalewise.train.recording import BatchSizes, DataShare
from scalewise.train.strategies import BUILDERS


def test_every_option_of_the_group_builds_its_own_kind() -> None:
    options = sorted(path.stem for path in (conf_dir() / "strategy").glob("*.yaml"))
    kinds = {
        option: composed_cell(f"strategy={option}", *fits(option)).strategy for option in options
    }
    assert {config.kind for config in kinds.values()} == set(KINDS)
    assert {option: config.name for option, config in kinds.items()} == {o: o for o in options}


def fits(option: str) -> tuple[str, ...]:
    """What a strategy that divides a model needs beside it."""
    divided = ("pipeline", "gpipe")
    return ("model=gpt2_tiny", "dataset=synthetic_tokens") if option in divided else ()


def test_every_kind_but_auto_has_a_builder() -> None:
    assert set(BUILDERS) == set(KINDS) - {"auto"}


def test_shares_that_do_not_fit_the_host_are_refused_there() -> None:
    config = composed_cell("strategy=heterogeneous", "strategy.shares=[0.6,0.4]")
    with pytest.raises(ConfigError, match=r"strategy\.shares: found 2 with devices=4"):
        config.per_device_batch_size(4)


@pytest.mark.parametrize(
    ("batch", "weights", "sizes"),
    [
        (16, (0.7, 0.3), (11, 5)),
        (10, (1.0, 1.0, 1.0), (4, 3, 3)),
        (8, (0.99, 0.005, 0.005), (6, 1, 1)),
        (3, (5.0, 1.0, 1.0), (1, 1, 1)),
        (100, (3.0, 1.0), (75, 25)),
    ],
)
def test_a_batch_is_shared_in_whole_samples(
    batch: int, weights: tuple[float, ...], sizes: tuple[int, ...]
) -> None:
    assert whole_samples(batch, weights) == sizes


def test_accumulated_batches_count_towards_the_global_batch() -> None:
    strong = composed_cell("strategy=ddp", "strategy.devices=2", "accumulate_grad_batches=4")
    assert strong.per_device_batch_size(2) == 64
    assert strong.global_batch_size(2) == 4 * 128
    weak = composed_cell("strategy=ddp", "strategy.devices=2", "scaling=weak")
    assert (weak.per_device_batch_size(2), weak.global_batch_size(2)) == (128, 256)


def drawn(sampler: Any) -> list[list[int]]:
    return list(sampler)


def test_uneven_parts_are_cut_from_the_batches_one_device_would_take() -> None:
    sizes = BatchSizes((7, 3, 2))
    whole = drawn(GlobalBatchSampler(100, BatchSizes([12]), 0, seed=3))
    parts = [drawn(GlobalBatchSampler(100, sizes, rank, seed=3)) for rank in range(3)]
    assert [[len(batch) for batch in part] for part in parts] == [[7] * 8, [3] * 8, [2] * 8]
    together = [list(itertools.chain(*pieces)) for pieces in zip(*parts, strict=True)]
    assert together == whole


def test_sizes_settled_later_hold_from_the_next_epoch() -> None:
    sizes = BatchSizes((6, 6))
    sampler = GlobalBatchSampler(24, sizes, 1, seed=0)
    assert [len(batch) for batch in drawn(sampler)] == [6, 6]
    sizes.settle((9, 3))
    assert [len(batch) for batch in drawn(sampler)] == [3, 3]
    assert DataShare(1, sizes).global_samples(300, 2) == 1200
    with pytest.raises(ValueError, match="allowed: 12 samples in all"):
        sizes.settle((9, 4))
