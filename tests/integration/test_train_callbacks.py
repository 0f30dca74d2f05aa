"""Callbacks, a schedule, a test stage and Hugging Face's form, as a user's own module has them."""

import json
from pathlib import Path

import pytest

from fakes.train_command import LEAN, Finished, Train
from scalewise.records import CellFolder, read_metrics

SCORED = """
import time
from types import SimpleNamespace
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader
from mine import Module, samples

class Scored(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)
    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
    def validation_step(self, batch, index):
        self.log("val/acc", float(self.current_epoch == 1))
    def test_step(self, batch, index):
        self.log("test/acc", 0.5)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class Data(Module):
    def val_dataloader(self):
        return DataLoader(samples(20, 1), batch_size=10)
    test_dataloader = val_dataloader

class Slow(pl.Callback):
    def on_train_batch_end(self, *args):
        time.sleep(0.005)

class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)
    def forward(self, x, labels=None):
        return SimpleNamespace(loss=nn.functional.cross_entropy(self.layer(x), labels))

def rows():
    return [dict(zip(("x", "labels"), one)) for one in samples(64, 0)]
"""
STOPPED = (
    "model._target_=scored.Scored", "dataset._target_=scored.Data", "max_steps=null",
    "max_epochs=8", "test=true", "validation=epoch", "callbacks=[early_stopping,model_checkpoint]",
    "callbacks.early_stopping.monitor=val/acc", "callbacks.early_stopping.patience=2",
    "callbacks.model_checkpoint.monitor=val/acc", "callbacks.slow._target_=scored.Slow",
)  # fmt: skip


@pytest.fixture(scope="module")
def stopped(shared_train: Train, elsewhere: Path) -> Finished:
    """Two ranks whose metric is best in the second of eight epochs."""
    (elsewhere / "scored.py").write_text(SCORED)
    run = shared_train(*LEAN, *STOPPED, "strategy=ddp", cwd=elsewhere)
    assert run.status == 0, run.err
    return run


def test_an_early_stop_and_the_best_checkpoint_are_on_record(stopped: Finished) -> None:
    folder = stopped.only_cell()
    for rank in folder.load_result().ranks:
        (kept,) = rank.checkpoints
        assert (kept.by, kept.monitor, kept.score) == ("ModelCheckpoint", "val/acc", 1.0)
        assert kept.path == "callbacks/checkpoints/epoch_001-step_24.ckpt"
        assert (folder.path / kept.path).is_file()
        assert (rank.stopped.by, rank.stopped.monitor, rank.stopped.epoch) == (
            "EarlyStopping", "val/acc", 4
        )  # fmt: skip
        assert rank.metrics["test/acc"] == 0.5
        assert rank.callbacks_ms_per_step["Slow"] > 4  # 5 ms, but none before a validation
    assert "stopped early by EarlyStopping on val/acc in epoch 4." in stopped.out
    assert "your callbacks" in (folder.path.parent / "report" / "details.md").read_text()
    assert not (folder.path.parents[2] / "checkpoints").exists()


@pytest.fixture(scope="module")
def later(stopped: Finished, shared_train: Train, elsewhere: Path) -> dict[str, CellFolder]:
    """Two cells that start from that checkpoint, by ``max_epochs``, and one of Hugging Face."""
    folder = stopped.only_cell()
    (kept,) = folder.load_result().ranks[0].checkpoints
    grids = [
        "model._target_=scored.Scored dataset._target_=scored.Data max_steps=null max_epochs=3,2 "
        f"validation=never ckpt_path={folder.path / kept.path}",
        "model._target_=scored.Keywords dataset._target_=scored.rows batch_size=16 max_steps=12 "
        "scheduler=cosine optimizer=sgd optimizer.lr=1.0 log_every_n_steps=1",
    ]
    run = shared_train(*LEAN[1:], f"hydra.sweeper.grids={json.dumps(grids)}", "-m", cwd=elsewhere)
    assert run.status == 1, run.err
    return {str(cell.load_config()["max_epochs"]): cell for _, cell in run.cells().values()}


def test_a_run_starts_from_a_checkpoint_and_says_where_nothing_is_left(
    later: dict[str, CellFolder],
) -> None:
    (rank,) = later["3"].load_result().ranks
    assert (rank.steps_completed, rank.epochs_completed) == (24, 3)
    (attempt,) = later["2"].attempts()
    assert attempt.cause == "config"
    assert "saved after step 24 and epoch 2, where this run ends" in attempt.message


def test_hugging_faces_form_trains_along_a_schedule(later: dict[str, CellFolder]) -> None:
    rows = read_metrics(later["None"].metrics_path(0))
    rates = [row.values["learning_rate"] for row in rows if "train_loss" in row.values]
    assert len(rates) == 12
    # The rate of each step is the one that it was taken with.
    assert (rates[0], rates[6]) == pytest.approx((1.0, 0.5))
    assert rates == sorted(rates, key=lambda rate: -(rate or 0.0))
