"""An iterator of the user's own that runs dry ends his run, not his epoch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from scalewise.records import CellFolder, DeviceInfo
from scalewise.train import experiment
from scalewise.train.recording import CellRecorder


class RunsDry(pl.LightningModule):
    """Takes a weight for each batch from an iterator that has two."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.weights = iter([1.0, 2.0])

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return next(self.weights) * self.layer(batch[0]).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        experiment._quiet()
        yield


def test_a_step_that_raises_stop_iteration_fails(tmp_path: Path) -> None:
    recorder = CellRecorder(CellFolder(tmp_path), DeviceInfo("cpu", "cpu"))
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[recorder],
    )
    loader = DataLoader(TensorDataset(torch.zeros(8, 2)), batch_size=2)
    with pytest.raises(RuntimeError, match="training_step raised StopIteration") as caught:
        trainer.fit(RunsDry(), loader)
    recorder.abandon()
    assert isinstance(caught.value.__cause__, StopIteration)
    assert trainer.global_step == 2
