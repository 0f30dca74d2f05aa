"""What is planted is what the fault says, and a clean run knows nothing of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
from faults import FaultConfig
from faults.plant import planted, skewed
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from scalewise.config import ConfigError, LoaderConfig
from scalewise.records import DataError, DeviceInfo, build
from scalewise.train import RankContext
from scalewise.train.data import GlobalBatchSampler, make_loader
from scalewise.train.execution import ExperimentModule
from scalewise.train.recording import BatchSizes


def rank(number: int, world: int = 2) -> RankContext:
    return RankContext(number, number, world, DeviceInfo("cpu", "a processor"))


class Net(nn.Module):
    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return output.sum()


def module() -> ExperimentModule:
    return ExperimentModule(Net(), lambda named: torch.optim.SGD([p for _, p in named]))


def loader(number: int, world: int = 2) -> Any:
    data = TensorDataset(torch.arange(100.0))
    sampler = GlobalBatchSampler(100, BatchSizes.equal(8, world), number, 0)
    return make_loader(data, sampler, LoaderConfig(), "cpu")


@pytest.mark.parametrize("excess", [0.1, 0.5, 5.0])
def test_skewed_shards_are_disjoint_and_complete(excess: float) -> None:
    fair = [GlobalBatchSampler(100, BatchSizes.equal(8, 3), r, seed=1) for r in range(3)]
    uneven = [list(skewed(f, heavy=1, excess=excess)) for f in fair]
    even = [list(f) for f in fair]
    for step in range(4):
        mine = [i for r in range(3) for i in uneven[r][step]]
        assert sorted(mine) == sorted(i for r in range(3) for i in even[r][step])
        assert len(uneven[1][step]) == min(22, round(8 * (1 + excess)))
        assert min(len(uneven[r][step]) for r in range(3)) >= 1


def test_without_a_sampler_every_rank_draws_the_same() -> None:
    fault = FaultConfig("no_sampler")
    drawn = []
    for number in range(2):
        data = loader(number)
        with planted(fault, rank(number), module(), data):
            drawn.append(list(data.batch_sampler))
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 100 // 8


def test_only_the_struck_rank_stalls_and_only_in_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("faults.plant.time.sleep", slept.append)
    fault = FaultConfig("stall", rank=1, ms=30.0, every_n_steps=3)
    monkeypatch.setattr(ExperimentModule, "training_step", lambda self, batch, i: torch.zeros(1))
    for number, expected in ((0, 0), (1, 2)):
        one = module()
        with planted(fault, rank(number), one, None):
            for i in range(7):
                one.training_step((torch.zeros(1), torch.zeros(1)), i)
        assert slept == [0.03] * expected
        assert "training_step" not in vars(one)


def test_a_common_stall_strikes_every_rank_once_after_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    slept: list[float] = []
    monkeypatch.setattr("faults.plant.time.sleep", slept.append)
    monkeypatch.setattr("faults.plant.time.monotonic", lambda: now[0])
    monkeypatch.setattr(ExperimentModule, "training_step", lambda self, batch, i: torch.zeros(1))
    fault = FaultConfig("common_stall", ms=200.0, at_s=0.5)
    for number in range(2):
        struck, one = [], module()
        slept.clear()
        with planted(fault, rank(number), one, None):
            for i in range(8):
                one.training_step((torch.zeros(1), torch.zeros(1)), i)
                struck.append(len(slept))
                # A first step that takes long is no time of training.
                now[0] += 9.0 if i == 0 else 0.125
        assert struck == [0, 0, 0, 0, 0, 1, 1, 1]
        assert slept == [0.2]


@pytest.mark.parametrize(
    ("kind", "loader", "said"),
    [
        ("second_context", None, r"^fault: found 'second_context' on a CPU"),
        ("no_sampler", object(), "LightningDataModule"),
    ],
)
def test_a_fault_that_cannot_be_planted_is_refused(kind: str, loader: object, said: str) -> None:
    fault = FaultConfig(kind)  # type: ignore[arg-type]
    assert fault.strikes(1)
    with pytest.raises(ConfigError, match=said), planted(fault, rank(1), module(), loader):
        pass


@pytest.mark.parametrize(
    "wrong", [{"ms": -1.0}, {"rank": -2}, {"every_n_steps": 1}, {"processes": -1}, {"at_s": -1.0}]
)
def test_magnitudes_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DataError) as caught:
        build(FaultConfig, {"kind": "stall", **wrong})
    assert caught.value.key == next(iter(wrong))
