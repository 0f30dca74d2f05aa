"""Settings of strategies, what they refuse, and how they share out a batch."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from fakes.small_fit import composed_cell
from scalewise.config import KINDS, REHEARSALS, ConfigError, conf_dir, whole_samples
from scalewise.models.gpt2 import Gpt2
from scalewise.models.mlp import Mlp
from scalewise.train.build import BUILDERS
from scalewise.train.execution.module import held_parameters
from scalewise.train.recording import BatchSizes, DataShare
from scalewise.train.strategies import data_parallel, model_parallel
from scalewise.train.strategies.data_parallel import LocalSgd, _Averaging
from scalewise.train.strategies.model_parallel import FsdpStrategy, sharding_units
from scalewise.train.strategies.pipeline import _hollow


def test_every_option_of_the_group_builds_its_own_kind() -> None:
    options = sorted(path.stem for path in (conf_dir() / "strategy").glob("*.yaml"))
    kinds = {one: composed_cell(f"strategy={one}", *fits(one)).strategy for one in options}
    # What ``rehearse`` makes of an option is none itself.
    assert {config.kind for config in kinds.values()} == set(KINDS) - set(REHEARSALS.values())
    assert {option: config.name for option, config in kinds.items()} == {o: o for o in options}
    assert set(BUILDERS) == set(KINDS) - {"auto"}


def fits(option: str) -> tuple[str, ...]:
    """What a strategy that divides a model, or shares out a batch, needs beside it."""
    if option == "heterogeneous":
        return ("strategy.shares=[0.6,0.4]",)
    divided = ("pipeline", "gpipe")
    return ("model=gpt2_tiny", "dataset=synthetic_tokens") if option in divided else ()


@pytest.mark.parametrize(
    ("batch", "weights", "sizes"),
    [(16, (0.7, 0.3), (11, 5)), (10, (1.0, 1.0, 1.0), (4, 3, 3)), (100, (3.0, 1.0), (75, 25)),
     (8, (0.99, 0.005, 0.005), (6, 1, 1)), (3, (5.0, 1.0, 1.0), (1, 1, 1))],
)  # fmt: skip
def test_a_batch_is_shared_in_whole_samples(
    batch: int, weights: tuple[float, ...], sizes: tuple[int, ...]
) -> None:
    assert whole_samples(batch, weights) == sizes
    for shard, own in enumerate(sizes):  # samples of all ranks are told from those of one
        share = DataShare(shard, BatchSizes(sizes))
        assert share.global_samples(30 * own, len(sizes)) == 30 * batch


def test_accumulated_batches_count_towards_the_global_batch_and_shares_fit_the_host() -> None:
    strong = composed_cell("strategy=ddp", "strategy.devices=2", "accumulate_grad_batches=4")
    assert (strong.per_device_batch_size(2), strong.global_batch_size(2)) == (64, 4 * 128)
    weak = composed_cell("strategy=ddp", "strategy.devices=2", "scaling=weak")
    assert (weak.per_device_batch_size(2), weak.global_batch_size(2)) == (128, 256)
    shared = composed_cell("strategy=heterogeneous", "strategy.shares=[0.6,0.4]")
    with pytest.raises(ConfigError, match=r"strategy\.shares: found 2 with devices=4"):
        shared.per_device_batch_size(4)


# What strategies that divide the model refuse, and how they cut it.
def test_stages_feed_the_same_samples_and_shards_their_own() -> None:
    on_four = ("hardware=cpu", "strategy.devices=4", "scaling=weak")
    pipeline = composed_cell("strategy=pipeline", "strategy.microbatches=4", *on_four)
    assert [pipeline.strategy.data_shard(rank, 4) for rank in range(4)] == [0, 0, 0, 0]
    assert pipeline.strategy.share_out(pipeline.global_batch_size(4), 4) == (512,)
    assert composed_cell("strategy=fsdp", *on_four).strategy.data_shards(4) == 4


def test_fsdp_gathers_blocks_or_layers_one_at_a_time() -> None:
    gpt2 = Gpt2(50, 16, layers=3, heads=2, width=24)
    assert sharding_units(gpt2) == list(gpt2.blocks)
    mlp = Mlp(10, [16, 8], 2)
    assert sharding_units(mlp) == [one for one in mlp.layers if isinstance(one, nn.Linear)]
    assert sharding_units(nn.Linear(2, 2)) == []


def test_fsdp_is_told_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    told, mesh, half = list[Any](), ("meta", (2,)), torch.bfloat16
    monkeypatch.setattr(
        model_parallel, "fully_shard", lambda _, **how: told.append([*how.values()])
    )
    monkeypatch.setattr(model_parallel, "init_device_mesh", lambda *mesh: mesh)
    monkeypatch.setattr(FsdpStrategy, "root_device", torch.device("meta"))
    module: Any = nn.ModuleDict({"network": nn.Linear(2, 2), "metric": nn.Linear(2, 2)})
    for sharding, reduces in (("full", "fp32"), ("grad_op", "bf16")):
        strategy, config = FsdpStrategy.__new__(FsdpStrategy), SimpleNamespace(sharding=sharding)
        config.reduce_dtype, strategy._half = reduces, reduces == "bf16"
        strategy._config, strategy._world_size = config, 2
        strategy.divide(module)
    assert [one.weight.is_meta for one in module.values()] == [False, True], "the rest is moved"
    policies = MixedPrecisionPolicy(None, torch.float32), MixedPrecisionPolicy(half, half)
    assert told == [[mesh, True, policies[0]], [mesh, False, policies[1]]]


def test_a_hollow_model_counts_whole_and_holds_its_stage() -> None:
    model = Mlp(10, [16, 8], 2)
    counts = [p.numel() for p in model.parameters()]
    _hollow(model, keep=model.layers[0])
    assert [p.numel() for p in model.parameters()] == counts
    assert [name for name, _ in held_parameters(model)] == ["layers.0.weight", "layers.0.bias"]


def test_averaging_is_told_a_timed_step() -> None:
    replicas = LocalSgd.__new__(LocalSgd)
    replicas._steps = 20
    replicas._averagings = [_Averaging(step, 100, 0.002, 0.006) for step in (4, 10, 11, 16, 20)]
    found = replicas.communication(10)
    assert (found.rounds_per_step, found.payload_bytes_per_step) == (0.3, 30.0)
    assert found.ms_per_step == pytest.approx(1.2)
    assert replicas.communication(0) is None


def test_the_mean_of_replicas_is_of_what_they_train_and_of_their_statistics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    module[1].weight.requires_grad_(False)
    module[0].weight.data, module[1].running_mean.data = torch.tensor([[4.0, 8.0]]), torch.ones(1)
    module.register_buffer("scale", torch.ones(3, dtype=torch.bfloat16))
    told = data_parallel._averaged(module)
    assert [tuple(one.shape) for one in told] == [(1, 2), (1,), (1,), (3,), (1,), (1,)]
    # As if of four ranks two had the same, and two had zeros.
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda flat: flat.mul_(2))
    assert data_parallel.average(told, 4) == (2 + 1 + 1 + 1 + 1) * 4 + 3 * 2
    assert module[0].weight.tolist() == [[2.0, 4.0]]
    assert (module[1].running_mean.item(), module[1].weight.item()) == (0.5, 1.0)
    assert module.scale.tolist() == [0.5] * 3
    monkeypatch.setattr(LocalSgd, "world_size", 4)
    monkeypatch.setattr(LocalSgd, "lightning_module", module)
    replicas = LocalSgd.__new__(LocalSgd)
    replicas.on_validation_start()
    assert module[0].weight.tolist() == [[1.0, 2.0]], "the mean is validated"
    replicas.on_validation_end()
    assert module[0].weight.tolist() == [[2.0, 4.0]], "each goes on with its own"


def test_replicas_are_averaged_after_every_period_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_parallel, "average", lambda tensors, ranks: 100 * ranks)
    monkeypatch.setattr(data_parallel, "_averaged", lambda module: [])
    monkeypatch.setattr(LocalSgd, "root_device", torch.device("cpu"))
    monkeypatch.setattr(LocalSgd, "world_size", 2)
    monkeypatch.setattr(data_parallel.UnwrappedReplicas, "__init__", lambda self, *_: None)
    monkeypatch.setattr(LocalSgd, "lightning_module", None)
    settings: Any = SimpleNamespace(period=3)
    replicas = LocalSgd(settings, settings)
    for _ in range(8):
        replicas._after_step()
    assert [(a.step, a.payload_bytes) for a in replicas._averagings] == [(3, 200), (6, 200)]
