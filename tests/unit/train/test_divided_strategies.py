"""What strategies that divide the model refuse, and how they cut it."""

from __future__ import annotations

import pytest
from torch import nn

from fakes.small_fit import composed_cell
from scalewise.models.gpt2 import Gpt2
from scalewise.models.mlp import Mlp
from scalewise.train.execution.module import held_parameters
from scalewise.train.strategies.model_parallel import sharding_units
from scalewise.train.strategies.pipeline import _hollow


def test_ranks_of_a_replica_feed_the_same_part_of_the_data() -> None:
    strategy = composed_cell("hardware=cpu", "strategy=pipeline", "strategy.stages=2").strategy
    assert strategy.data_shards(4) == 2
    assert [strategy.data_shard(rank, 4) for rank in range(4)] == [0, 0, 1, 1]
    assert composed_cell("hardware=cpu", "strategy=fsdp").strategy.data_shards(4) == 4


@pytest.mark.parametrize(
    ("scaling", "of_one", "of_two"), [("strong", (128,), (64, 64)), ("weak", (512,), (256, 256))]
)
def test_a_replica_s_batch_is_that_of_its_devices_together(
    scaling: str, of_one: tuple[int, ...], of_two: tuple[int, ...]
) -> None:
    pipeline = ("hardware=cpu", "strategy=pipeline", "strategy.devices=4", f"scaling={scaling}")
    for cell, sizes in (
        (composed_cell(*pipeline), of_one),
        (composed_cell(*pipeline, "strategy.stages=2"), of_two),
    ):
        assert cell.strategy.share_out(cell.global_batch_size(4), 4) == sizes


def test_fsdp_gathers_blocks_or_layers_one_at_a_time() -> None:
    gpt2 = Gpt2(50, 16, layers=3, heads=2, width=24)
    assert sharding_units(gpt2) == list(gpt2.blocks)
    mlp = Mlp(10, [16, 8], 2)
    assert sharding_units(mlp) == [one for one in mlp.layers if isinstance(one, nn.Linear)]
    assert sharding_units(nn.Linear(2, 2)) == []


def test_a_hollow_model_counts_whole_and_holds_its_stage() -> None:
    model = Mlp(10, [16, 8], 2)
    counts = [p.numel() for p in model.parameters()]
    kept = model.layers[0]
    _hollow(model, keep=kept)
    assert [p.numel() for p in model.parameters()] == counts
    names = [name for name, _ in held_parameters(model)]
    assert names == ["layers.0.weight", "layers.0.bias"]
