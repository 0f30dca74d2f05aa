"""Settings of strategies, what they refuse, and how they share out a batch."""

from __future__ import annotations

import itertools
from typing import Any, cast

import pytest
from hydra import compose, initialize_config_dir

from scalewise.config import (
    KINDS,
    CellConfig,
    ConfigError,
    build_cell,
    conf_dir,
    resolve,
    strategy_config,
    whole_samples,
    without_absent_groups,
)
from scalewise.records import DataError
from scalewise.train.data import GlobalBatchSampler, UnevenBatchSampler
from scalewise.train.recording import BatchSizes, DataShare
from scalewise.train.strategies import BUILDERS, build


def cell(*overrides: str) -> CellConfig:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        plain = resolve(compose(config_name="config", overrides=list(overrides)))
    return build_cell(without_absent_groups(plain))


def test_every_option_of_the_group_builds_its_own_kind() -> None:
    options = sorted(path.stem for path in (conf_dir() / "strategy").glob("*.yaml"))
    kinds = {option: cell(f"strategy={option}", *fits(option)).strategy for option in options}
    assert {config.kind for config in kinds.values()} == set(KINDS)
    assert {option: config.name for option, config in kinds.items()} == {o: o for o in options}


def fits(option: str) -> tuple[str, ...]:
    """What a strategy that divides a model needs beside it."""
    divided = ("pipeline", "gpipe", "tensor")
    return ("model=gpt2_tiny", "dataset=synthetic_tokens") if option in divided else ()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("strategy=ddp", "strategy.static_graph=true", "strategy.find_unused_parameters=true"),
            "strategy.find_unused_parameters: found true with static_graph=true, which finds them "
            "once for all steps; allowed: false",
        ),
        (
            ("strategy=local_sgd", "precision=fp16-mixed"),
            "precision: found fp16-mixed with strategy=local_sgd; allowed: fp32, tf32, bf16-mixed",
        ),
        (
            ("strategy=task_parallel", "strategy.devices=1"),
            "strategy.devices: found 1 with strategy=task_parallel; allowed: 2 or more, or auto "
            "(strategy=single for one)",
        ),
        (
            ("strategy=heterogeneous", "strategy.shares=[0.6,0.5]"),
            "strategy.shares: found [0.6, 0.5]; allowed: one above 0 for each device, adding up "
            "to 1, or auto",
        ),
        (
            ("strategy=heterogeneous", "strategy.shares=[0.6,0.4]", "strategy.devices=3"),
            "strategy.shares: found 2 with devices=3; allowed: one for each device, or auto",
        ),
        (
            ("strategy=heterogeneous", "strategy.compression=bf16"),
            "strategy.compression: found bf16 with strategy=heterogeneous, which sends weighted "
            "gradients; allowed: none",
        ),
        (
            ("strategy=heterogeneous", "strategy.devices=4", "batch_size=3"),
            "batch_size: found 3 on 4 devices; allowed: 4 or more, one sample for each",
        ),
        (
            ("strategy=auto", "strategy.probe_warmup_steps=60"),
            "strategy.probe_warmup_steps: found 60 with probe_steps=60; allowed: 0 to 59",
        ),
        (
            ("strategy=auto", "strategy.candidates.ddp.bucket_cap_mb=0"),
            "strategy.candidates.ddp.bucket_cap_mb: found 0; allowed: above 0",
        ),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        cell(*overrides)
    assert str(error.value) == message


def test_every_kind_but_auto_has_a_builder() -> None:
    assert set(BUILDERS) == set(KINDS) - {"auto"}
    with pytest.raises(ValueError, match=r"strategy: found auto in a single cell; allowed: single"):
        build(cell("strategy=auto").strategy, cast(Any, None))


def test_an_unknown_kind_lists_those_there_are() -> None:
    with pytest.raises(DataError, match=r"strategy\.kind: found None; allowed: single \| ddp"):
        strategy_config({"name": "mine"})


def test_shares_that_do_not_fit_the_host_are_refused_there() -> None:
    config = cell("strategy=heterogeneous", "strategy.shares=[0.6,0.4]")
    with pytest.raises(ConfigError, match=r"strategy\.shares: found 2 on 4 devices"):
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
    strong = cell("strategy=ddp", "strategy.devices=2", "accumulate_grad_batches=4")
    assert strong.per_device_batch_size(2) == 64
    assert strong.global_batch_size(2) == 4 * 128
    weak = cell("strategy=ddp", "strategy.devices=2", "scaling=weak")
    assert (weak.per_device_batch_size(2), weak.global_batch_size(2)) == (128, 256)


def drawn(sampler: Any) -> list[list[int]]:
    return list(sampler)


def test_uneven_parts_are_cut_from_the_batches_one_device_would_take() -> None:
    sizes = BatchSizes((7, 3, 2))
    whole = drawn(GlobalBatchSampler(100, 12, 0, 1, seed=3))
    parts = [drawn(UnevenBatchSampler(100, sizes, rank, seed=3)) for rank in range(3)]
    assert [[len(batch) for batch in part] for part in parts] == [[7] * 8, [3] * 8, [2] * 8]
    together = [list(itertools.chain(*pieces)) for pieces in zip(*parts, strict=True)]
    assert together == whole


def test_sizes_settled_later_hold_from_the_next_epoch() -> None:
    sizes = BatchSizes((6, 6))
    sampler = UnevenBatchSampler(24, sizes, rank=1, seed=0)
    assert [len(batch) for batch in drawn(sampler)] == [6, 6]
    sizes.settle((9, 3))
    assert [len(batch) for batch in drawn(sampler)] == [3, 3]
    assert DataShare(1, sizes).global_samples(300, 2) == 1200
    with pytest.raises(ValueError, match="allowed: 12 samples in all"):
        sizes.settle((9, 4))
