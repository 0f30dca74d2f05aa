"""What strategies that divide the model refuse, and how they cut it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from torch import nn

from scalewise.config import (
    CellConfig,
    ConfigError,
    build_cell,
    conf_dir,
    resolve,
    without_absent_groups,
)
from scalewise.models.gpt2 import Gpt2
from scalewise.models.mlp import Mlp
from scalewise.train.execution.module import held_parameters
from scalewise.train.strategies.model_parallel import _deal_out_heads, sharding_units
from scalewise.train.strategies.pipeline import _hollow

TOKENS = ("model=gpt2_tiny", "dataset=synthetic_tokens")


def cell(*overrides: str) -> CellConfig:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        plain = resolve(compose("config", overrides=["hardware=cpu", *overrides]))
    return build_cell(without_absent_groups(plain))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("strategy=fsdp", "optimizer=adafactor"),
            "optimizer: found adafactor with strategy=fsdp; allowed: adam, adamw, sgd and their "
            "like: its row and column means are taken over a matrix that is spread over ranks",
        ),
        (
            ("strategy=tensor", *TOKENS, "optimizer=muon"),
            "optimizer: found muon with strategy=tensor; allowed: adam, adamw, sgd and their like: "
            "it makes a whole matrix orthogonal, and no rank has one",
        ),
        (
            ("strategy=fsdp", "precision=fp16-mixed"),
            "precision: found fp16-mixed with strategy=fsdp; allowed: fp32, tf32, bf16-mixed",
        ),
        (
            ("strategy=pipeline", "pruning=magnitude"),
            "pruning: found magnitude with strategy=pipeline; allowed: none, because weights are "
            "ranked over a whole matrix and no rank has one",
        ),
        (
            ("strategy=tensor",),
            "model: found Mlp with strategy=tensor; allowed: Gpt2, TextClassifier, or "
            "strategy=fsdp for any other",
        ),
        (
            ("strategy=pipeline", "model=resnet18", "dataset=synthetic_images"),
            "model: found ResNet with strategy=pipeline; allowed: Gpt2, TextClassifier, Mlp, "
            "SizedMlp, or strategy=fsdp for any other",
        ),
        (
            ("strategy=fsdp", "model=lstm", "dataset=tabular_windows"),
            "model: found Recurrent with strategy=fsdp; allowed: a model without torch's LSTM or "
            "GRU, whose fused kernels keep the unsharded weights",
        ),
        (
            ("strategy=pipeline", "accumulate_grad_batches=2"),
            "accumulate_grad_batches: found 2 with strategy=pipeline; allowed: 1, and a batch_size "
            "and strategy.microbatches as many times as large",
        ),
        (
            ("strategy=fsdp", "strategy.sharding=hybrid"),
            "strategy.shard_size: found null with sharding=hybrid; allowed: 2 or more devices a "
            "group",
        ),
        (
            ("strategy=fsdp", "strategy.shard_size=2"),
            "strategy.shard_size: found 2 with sharding=full; allowed: null",
        ),
        (
            ("strategy=fsdp", "strategy.gather_dtype=bf16"),
            "strategy.gather_dtype: found bf16 with precision=fp32; allowed: auto or fp32, or "
            "precision=bf16-mixed",
        ),
        (
            ("strategy=tensor", *TOKENS, "strategy.degree=1"),
            "strategy.degree: found 1; allowed: 2 or more, or auto for all devices",
        ),
        (
            ("strategy=pipeline", "strategy.stages=2", "strategy.devices=3"),
            "strategy.devices: found 3 with 2 devices a replica (strategy=pipeline); allowed: a "
            "multiple of 2",
        ),
        (
            ("strategy=pipeline", "strategy.microbatches=3", "strategy.devices=4"),
            "strategy.microbatches: found 3 with 4 stages and schedule=1f1b; allowed: 4 or more, "
            "or schedule=gpipe",
        ),
        (
            ("strategy=gpipe", "strategy.microbatches=3", "strategy.devices=2"),
            "strategy.microbatches: found 3 for a replica's batch of 128; allowed: a divisor of it",
        ),
        (
            (
                "strategy=fsdp",
                "strategy.sharding=hybrid",
                "strategy.shard_size=2",
                "strategy.devices=2",
            ),
            "strategy.shard_size: found 2 on 2 devices; allowed: a divisor of the number of "
            "devices below it (sharding=full for one group)",
        ),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        cell(*overrides)
    assert str(refused.value) == message


def test_ranks_of_a_replica_feed_the_same_part_of_the_data() -> None:
    strategy = cell("strategy=pipeline", "strategy.stages=2").strategy
    assert strategy.data_shards(4) == 2
    assert [strategy.data_shard(rank, 4) for rank in range(4)] == [0, 0, 1, 1]
    assert cell("strategy=fsdp").strategy.data_shards(4) == 4


@pytest.mark.parametrize(("scaling", "batches"), [("strong", (128, 128)), ("weak", (512, 256))])
def test_a_replica_s_batch_is_that_of_its_devices_together(
    scaling: str, batches: tuple[int, int]
) -> None:
    one = cell("strategy=pipeline", "strategy.devices=4", f"scaling={scaling}")
    two = cell("strategy=pipeline", "strategy.devices=4", "strategy.stages=2", f"scaling={scaling}")
    sizes = one.strategy.share_out(one.global_batch_size(4), 4)
    assert sizes == (batches[0],)
    assert two.strategy.share_out(two.global_batch_size(4), 4) == (
        (64, 64) if scaling == "strong" else (256, 256)
    )


def test_fsdp_gathers_blocks_or_layers_one_at_a_time() -> None:
    gpt2 = Gpt2(50, 16, layers=3, heads=2, width=24)
    assert sharding_units(gpt2) == list(gpt2.blocks)
    mlp = Mlp(10, [16, 8], 2)
    assert sharding_units(mlp) == [one for one in mlp.layers if isinstance(one, nn.Linear)]
    assert sharding_units(nn.Linear(2, 2)) == []


def test_heads_are_dealt_out_so_that_a_slice_attends_by_itself() -> None:
    width, parts = 8, 2
    qkv = nn.Linear(width, 3 * width)
    q, k, v = (part.clone() for part in qkv.weight.detach().chunk(3))
    _deal_out_heads(qkv, parts)
    for place, piece in enumerate(qkv.weight.detach().chunk(parts)):
        own = [matrix.chunk(parts)[place] for matrix in (q, k, v)]
        torch.testing.assert_close(piece, torch.cat(own), rtol=0, atol=0)


def test_a_hollow_model_counts_whole_and_holds_its_stage() -> None:
    model = Mlp(10, [16, 8], 2)
    counts = [p.numel() for p in model.parameters()]
    kept = model.layers[0]
    _hollow(model, keep=kept)
    assert [p.numel() for p in model.parameters()] == counts
    names = [name for name, _ in held_parameters(model)]
    assert names == ["layers.0.weight", "layers.0.bias"]


def test_parameters_of_two_kinds_come_as_two_groups() -> None:
    class Divided(nn.Parameter):
        placements: Any = ()

        def to_local(self) -> Any:
            return self

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].weight = Divided(torch.zeros(2, 2))
    groups = held_parameters(model)
    named = [[name for name, _ in group["params"]] for group in groups]
    assert named == [["0.weight"], ["0.bias", "1.weight", "1.bias"]]
    optimizer = torch.optim.AdamW(groups)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 3]
