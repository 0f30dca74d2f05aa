"""A user's loader or iterator that has run dry ends his fit, and not an epoch unseen."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from fakes.small_fit import small_trainer
from scalewise.records import CellFolder, DeviceInfo
from scalewise.train import experiment
from scalewise.train.experiment import EmptyEpochError, EmptyEpochGuard
from scalewise.train.recording import CellRecorder

pytestmark = pytest.mark.timeout(60)


class Linear(pl.LightningModule):
    """Takes a weight for each batch from an iterator, if it has one."""

    def __init__(self, weights: Iterator[float] | None = None) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.weights = weights

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = self.layer(batch[0]).mean()
        return loss if self.weights is None else next(self.weights) * loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Nothing(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(())


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        experiment._quiet()
        yield


def two_batches() -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(torch.zeros(8, 2)), batch_size=4)


def fit(loader: Iterable[Any]) -> pl.Trainer:
    """Ten steps in as many epochs as it takes."""
    trainer = small_trainer(max_steps=10, max_epochs=-1, callbacks=[EmptyEpochGuard("mine")])
    trainer.fit(Linear(), loader)
    return trainer


def test_a_loader_with_batches_in_every_epoch_is_let_be() -> None:
    assert fit(two_batches()).global_step == 10


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        ((batch for batch in two_batches()), "from mine in epoch 2, after 2 steps"),
        (DataLoader(Nothing(), batch_size=4), "from mine, so nothing was trained"),
    ],
    ids=["generator", "empty stream"],
)
def test_an_epoch_without_a_batch_is_refused(loader: Any, said: str) -> None:
    with pytest.raises(EmptyEpochError, match=said):
        fit(loader)


def test_a_step_that_raises_stop_iteration_fails(tmp_path: Path) -> None:
    recorder = CellRecorder(CellFolder(tmp_path), DeviceInfo("cpu", "cpu"))
    trainer = small_trainer(max_epochs=1, callbacks=[recorder])
    loader = DataLoader(TensorDataset(torch.zeros(8, 2)), batch_size=2)
    with pytest.raises(RuntimeError, match="training_step raised StopIteration") as caught:
        trainer.fit(Linear(iter([1.0, 2.0])), loader)
    recorder.abandon()
    assert isinstance(caught.value.__cause__, StopIteration)
    assert trainer.global_step == 2
