"""A loader that has run dry ends the fit, which would otherwise go on without a batch."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from scalewise.train import experiment
from scalewise.train.experiment import EmptyEpochError, EmptyEpochGuard

pytestmark = pytest.mark.timeout(60)


class Linear(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.layer(batch[0]).mean()

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


def fit(loader: Iterable[Any]) -> pl.Trainer:
    """Ten steps in as many epochs as it takes; a loader of two batches."""
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=10,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[EmptyEpochGuard("mine")],
    )
    trainer.fit(Linear(), loader)
    return trainer


def two_batches() -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(torch.zeros(8, 2)), batch_size=4)


def test_a_loader_with_batches_in_every_epoch_is_let_be() -> None:
    assert fit(two_batches()).global_step == 10


def test_a_generator_is_refused_in_its_second_epoch() -> None:
    with pytest.raises(EmptyEpochError, match="no batch came from mine in epoch 2, after 2 steps"):
        fit(batch for batch in two_batches())


def test_a_stream_without_a_batch_is_refused_in_its_first_epoch() -> None:
    with pytest.raises(EmptyEpochError, match="no batch came from mine, so nothing was trained"):
        fit(DataLoader(Nothing(), batch_size=4))
