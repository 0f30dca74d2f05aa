"""What ``execution`` changes leaves the mathematics alone."""

import faulthandler
import os
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import pytorch_lightning as pl
import torch
from torch import nn

from fakes.small_fit import composed_cell
from scalewise.config import ConfigError, ExecutionConfig, explain
from scalewise.datasets.contract import TensorPairs, TokenWindows
from scalewise.models.gpt2 import Gpt2
from scalewise.models.mlp import Mlp
from scalewise.records import CellFolder, DeviceInfo
from scalewise.train import RankContext, experiment
from scalewise.train.data import on_device
from scalewise.train.execution import Execution, ExperimentModule
from scalewise.train.execution.apply import checkpoint_blocks
from scalewise.train.execution.fast_loop import LeanSteps
from scalewise.train.rank import DeviceError, check_computes

CPU = RankContext(0, 0, 1, DeviceInfo("cpu", "some CPU"))


def train_alone(folder: Path, *overrides: str) -> None:
    cell = composed_cell("model=medium", "tracking=none", "strategy=single", *overrides)
    experiment.run(cell, CellFolder(folder), CPU)


def test_who_uses_a_logger_is_told_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExperimentModule, "validation_step", lambda self, *_: self.logger.save())
    with pytest.raises(ConfigError, match=f"{__file__}:"):
        train_alone(tmp_path, "max_steps=21")
    logger: Any = None
    with pytest.raises(AttributeError) as other:
        logger.info("this is no logger of a cell")
    assert not explain(other.value)


def gradients(network: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(3)
    network.zero_grad()
    network(x).square().mean().backward()
    return [p.grad.clone() for p in network.parameters() if p.grad is not None]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_checkpointing_changes_no_gradient_and_no_name(dropout: float) -> None:
    torch.manual_seed(0)
    network = Gpt2(32, 8, layers=2, heads=2, width=16, dropout=dropout)
    names = [name for name, _ in network.named_parameters()]
    x = torch.randint(0, 32, (3, 8))
    plain = gradients(network, x)
    assert checkpoint_blocks(network) == 2
    torch.testing.assert_close(gradients(network, x), plain)
    assert [name for name, _ in network.named_parameters()] == names


def test_blocks_with_batch_statistics_and_networks_without_blocks_are_not_checkpointed() -> None:
    network = nn.Sequential()
    network.blocks = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    for one, said in ((network, " with batch norm"), (Mlp(5, [16], 2), ", but Mlp has no")):
        with pytest.raises(ValueError, match=f"activation_checkpointing: found true{said}"):
            checkpoint_blocks(one)


@pytest.mark.parametrize(("off", "said"), [(1.28, "0.005"), (3e-10, "1.2e-12"), (2e-10, "")])
def test_the_device_check_knows_a_wrong_product(
    monkeypatch: pytest.MonkeyPatch, off: float, said: str
) -> None:
    cpu = torch.device("cpu")
    check_computes(cpu)
    right, found = (torch.tensor([-256.0, more], dtype=torch.float64) for more in (8, 8 + off))
    monkeypatch.setattr(torch.Tensor, "__matmul__", Mock(side_effect=[right, found]))
    message = f"cpu failed its check before training: a 256x256 fp64 product is off by {said} of"
    with pytest.raises(DeviceError, match=message) if said else nullcontext():
        check_computes(cpu)


def test_data_move_to_a_device_whole(tmp_path: Path) -> None:
    pairs = TensorPairs(torch.arange(6.0).view(6, 1), torch.arange(6))
    for data in (pairs, TokenWindows(torch.arange(20), 4)):
        moved = on_device(data, torch.device("cpu"))
        torch.testing.assert_close(moved.__getitems__([2, 0]), data.__getitems__([2, 0]))  # type: ignore[attr-defined]
        assert len(moved) == len(data)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="device_resident: found true, but list has no method to"):
        on_device([1, 2], torch.device("cpu"))  # type: ignore[arg-type]


def test_training_keeps_what_signals_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen, train = signal.getsignal(signal.SIGTERM), [], ExperimentModule.training_step

    def step(module: ExperimentModule, batch: Any, batch_idx: int) -> torch.Tensor:
        seen.append(signal.getsignal(signal.SIGTERM))
        assert isinstance(module.trainer.fit_loop.epoch_loop.automatic_optimization, LeanSteps)
        return train(module, batch, batch_idx)

    monkeypatch.setattr(ExperimentModule, "training_step", step)
    with (tmp_path / "stacks").open("w+") as stacks:
        faulthandler.register(signal.SIGUSR1, stacks)  # as a rank does, for stderr
        try:
            train_alone(tmp_path, "max_steps=2", "warmup_steps=1", "validation=never")
            os.kill(os.getpid(), signal.SIGUSR1)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
        stacks.seek(0)
        assert "most recent call first" in stacks.read(), "after training too"
    assert seen == [before] * 2, "Lightning puts no handler of its own there"


@pytest.mark.parametrize(
    ("asked", "scored_in"),
    [("end", {"validate"}), ("epoch", {"fit"}), ("never", set()), ("end 0", set())],
)
def test_validation_comes_where_it_is_asked_for_and_there_is_a_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, scored_in: set[str]
) -> None:
    validation, *fraction = asked.split()
    scored: list[str] = []
    monkeypatch.setattr(ExperimentModule, "on_validation_epoch_end",
                        lambda module: scored.append(module.trainer.state.fn.value))  # fmt: skip
    train_alone(
        tmp_path, "max_epochs=1", "max_steps=null", "dataset.samples=640", "warmup_steps=0",
        f"validation={validation}", *(f"dataset.validation_fraction={one}" for one in fraction),
    )  # fmt: skip
    assert set(scored) == scored_in


def test_a_run_without_a_batch_says_that_nothing_was_trained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^dataset: no batch came from tabular, so nothing"):
        train_alone(tmp_path, "max_steps=2", "warmup_steps=1", "trainer.limit_train_batches=0")


@pytest.mark.parametrize(("strategy", "seeds"), [("ddp", [3, 4]), ("pipeline", [3, 3])])
def test_replicas_have_masks_of_their_own_and_stages_of_one_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, seeds: list[int]
) -> None:
    monkeypatch.setattr(experiment, "_join_process_group", Mock(side_effect=InterruptedError))
    cell = composed_cell(f"strategy={strategy}", "strategy.devices=2", "seed=3")
    for rank in range(2):
        with pytest.raises(InterruptedError):
            experiment.run(cell, CellFolder(tmp_path), RankContext(rank, rank, 2, CPU.device))
        assert torch.initial_seed() == seeds[rank]


@pytest.mark.parametrize(
    ("overrides", "why"),
    [((), None), (("accumulate_grad_batches=2",), "gradients are accumulated"),
     (("strategy.find_unused_parameters=true",), "unused parameters"),
     (("precision=fp16-mixed",), "loss scaling")],
)  # fmt: skip
def test_what_is_known_to_stand_against_a_capture_is_said_before_training(
    overrides: tuple[str, ...], why: str | None
) -> None:
    execution = Execution.__new__(Execution)
    execution._cell = composed_cell("strategy=ddp", *overrides)
    module = ExperimentModule(Mlp(2, [4], 1), lambda _: None)
    found = execution._known_obstacle(module)
    assert (found and why in found) if why else found is None
    module.network.register_forward_hook(lambda *_: None)
    assert (why or "network has hooks") in str(execution._known_obstacle(module))
    assert "LightningModule of its own" in execution._known_obstacle(pl.LightningModule())


def test_only_captures_that_communicate_change_the_ranks_environment() -> None:
    eager, compiled, captured = (ExecutionConfig(k, k) for k in ("eager", "compile", "cudagraph"))
    assert captured.rank_environment(1) == eager.rank_environment(2) == {}
    assert captured.rank_environment(2)["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    # Steps that prepare are never timed.
    assert (eager.preparing_steps(8), compiled.preparing_steps(2)) == (0, 3)
    assert [captured.preparing_steps(world) for world in (1, 2)] == [5, 13]
