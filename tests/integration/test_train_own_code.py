"""A user's own model, data and script, from a folder of his own, with full records."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fakes.step_files import common_steps
from fakes.train_command import LEAN, Finished, Train
from scalewise.analysis import CellRecords, load_sweep
from scalewise.analysis.balance import audit_shards, measure_balance
from scalewise.analysis.comparability import differences, identity
from scalewise.cli import main
from scalewise.host import CLASS_FILES
from scalewise.records import CellFolder, StepSeries, read_metrics, read_shard, read_steps

SCORED = """
import time
from types import SimpleNamespace
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader
from lit import Module
from mine import samples

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

class Loaders(Scored):
    batch_size, train_dataloader = 10, Module.train_dataloader
    val_dataloader = test_dataloader = Data.val_dataloader

class Dry(Module):
    def train_dataloader(self):
        return (batch for batch in super().train_dataloader())

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
INJECTED_MS = {
    "data_wait": 12.0, "h2d": 14.0, "forward": 16.0, "backward": 18.0, "optimizer": 20.0,
    "other": 22.0,
}  # fmt: skip
OWN = "model._target_=mine.Net model.width=12 dataset._target_=mine.Data batch_size=16 max_steps=30"
SLOW = "model._target_=lit.SlowModule max_steps=30"
LOADERS = "model._target_=scored.Loaders dataset=own_loaders max_steps=null max_epochs=2 test=True"
CELLS = {
    # Two ranks whose metric is best in the second of eight epochs.
    "stopped": "strategy=ddp model._target_=scored.Scored dataset._target_=scored.Data "
    "max_steps=null max_epochs=8 test=True validation=epoch callbacks.early_stopping.patience=2 "
    "callbacks=[early_stopping,model_checkpoint] callbacks.early_stopping.monitor=val/acc "
    "callbacks.model_checkpoint.monitor=val/acc callbacks.slow._target_=scored.Slow "
    "callbacks.bar._target_=lightning.pytorch.callbacks.RichProgressBar",
    "single": f"strategy=single {OWN}",
    "ddp": f"strategy=ddp {OWN}",
    "decides": f"strategy=ddp {SLOW} dataset._target_=lit.Module +dataset.batch_size=10",
    "read_once": f"strategy=single {SLOW} dataset._target_=scored.Dry",
    "its_own_1": f"strategy=single validation=epoch {LOADERS}",
    "its_own_2": f"strategy=ddp validation=epoch {LOADERS}",
    "delayed": f"strategy=ddp {SLOW} batch_size=16 dataset._target_=mine.SlowData "
    f"+dataset.batch_ms={INJECTED_MS['data_wait']} +model.rank=1 "
    + " ".join(f"+model.{p}_ms={ms}" for p, ms in INJECTED_MS.items() if p != "data_wait"),
}
"""Cell to what is typed for it. ``SLOW`` ones have data that do something of their own, or all is
late."""


@pytest.fixture(scope="module")
def run(shared_train: Train, elsewhere: Path) -> Finished:
    """One sweep of ``CELLS``."""
    (elsewhere / "scored.py").write_text(SCORED)
    grids = f"hydra.sweeper.grids={json.dumps([*CELLS.values()])}"
    run = shared_train(*LEAN[1:], grids, "-m", cwd=elsewhere)
    assert run.status == 1, run.err
    assert "scalewise resume" not in run.err, "the same command would fail in the same way"
    return run


@pytest.fixture(scope="module")
def cells(run: Finished) -> dict[str, CellFolder]:
    """The cells of that sweep by their names in ``CELLS``."""
    return {
        name: folder
        for planned, folder in run.cells().values()
        for name, typed in CELLS.items()
        if {*typed.split()} <= {*planned.overrides}
    }


def test_a_model_and_data_of_ones_own_train_with_full_records(cells: dict[str, CellFolder]) -> None:
    result = cells["ddp"].load_result()
    assert (result.world_size, result.ranks[0].parameters_total) == (2, 8 * 12 + 12 + 12 * 4 + 4)
    assert result.ranks[0].gradient_bytes == 4 * result.ranks[0].parameters_total
    assert cells["ddp"].load_config()["model"] == {"_target_": "mine.Net", "width": 12}
    assert set(cells["ddp"].load_provenance().code[CLASS_FILES]) == {"mine.py"}
    shards = [read_shard(cells["ddp"].shard_path(rank), rank) for rank in range(2)]
    assert audit_shards(shards, 2, 16).verdict == "sharded"
    assert not load_sweep(cells["ddp"].path.parent).problems


def test_metrics_of_two_ranks_are_those_of_one(cells: dict[str, CellFolder]) -> None:
    """The model predicts from the data alone; 101 samples give the ranks 51 and 50."""
    alone = cells["single"].load_result().ranks[0].metrics
    for rank in cells["ddp"].load_result().ranks:
        for name in ("val_accuracy", "val_accuracy_macro", "val_loss"):
            assert rank.metrics[name] == pytest.approx(alone[name], rel=1e-6)
    # As ``samples`` of that module draws them.
    drawn = np.random.default_rng(1)
    x, y = drawn.standard_normal((101, 8), np.float32), drawn.integers(4, size=101)
    assert alone["val_accuracy"] == pytest.approx((x[:, :4].argmax(1) == y).mean(), rel=1e-6)


def test_a_datamodule_of_ones_own_decides_on_its_batches(cells: dict[str, CellFolder]) -> None:
    folder = cells["decides"]
    result = folder.load_result()
    assert [rank.own_optimizer for rank in result.ranks] == ["SlowSgd"] * 2
    assert all(rank.own_batches for rank in result.ranks)
    assert "lit.Module has no validation set" in result.ranks[0].missing["validation"]
    report = folder.path.parent / "report" / "report.md"
    assert "optimizer=its_own_(SlowSgd)" in report.read_text()
    assert (result.per_device_batch_size, result.global_batch_size) == (10, 20)
    shards = [read_shard(folder.shard_path(rank), rank) for rank in range(2)]
    assert audit_shards(shards, 2, 20).verdict == "sharded"


@pytest.mark.parametrize("devices", [1, 2])
def test_loaders_of_a_module_feed_its_ranks(cells: dict[str, CellFolder], devices: int) -> None:
    folder = cells[f"its_own_{devices}"]
    result = folder.load_result()
    assert (result.scaling, result.global_batch_size) == ("weak", 10 * devices)
    for rank in result.ranks:
        assert rank.own_batches
        assert (rank.metrics["val/acc"], rank.metrics["test/acc"]) == (1.0, 0.5)
    shards = [read_shard(folder.shard_path(rank), rank) for rank in range(devices)]
    found = audit_shards(shards, devices, 10 * devices)
    assert found.verdict == ("sharded" if devices > 1 else "replicated")


def test_a_datamodule_that_gives_no_batch_says_in_which_epoch(cells: dict[str, CellFolder]) -> None:
    (attempt,) = cells["read_once"].attempts()
    assert attempt.cause == "config"
    assert "no batch came in epoch 2, after " in attempt.message


@pytest.fixture
def delayed(cells: dict[str, CellFolder]) -> tuple[StepSeries, StepSeries]:
    """Both ranks of a cell whose second has a different delay in every phase, all at once."""
    first, second = (read_steps(cells["delayed"].steps_path(rank), rank) for rank in (0, 1))
    return first, second


@pytest.mark.parametrize("phase", INJECTED_MS)
def test_a_delay_appears_in_its_phase(delayed: tuple[StepSeries, StepSeries], phase: str) -> None:
    """A sleep is never shorter than asked; one step in fifteen is undisturbed on a busy host too.

    The phases add up to the step, so what each has beyond its own sleep came from nowhere else.
    """
    found = delayed[1].timed().column(phase)
    assert (found >= INJECTED_MS[phase]).all()
    assert found.min() <= 1.1 * INJECTED_MS[phase]


def test_a_slow_rank_is_found_by_its_arrival(delayed: tuple[StepSeries, StepSeries]) -> None:
    assert measure_balance(common_steps(delayed, 2)).slowest_rank == 1
    waits = [float(np.median(one.timed().column("exposed_comm"))) for one in delayed]
    assert waits[0] > waits[1]


def test_an_early_stop_and_the_best_checkpoint_are_on_record(
    run: Finished, cells: dict[str, CellFolder]
) -> None:
    folder = cells["stopped"]
    for rank in folder.load_result().ranks:
        (kept,) = rank.checkpoints
        assert (kept.by, kept.monitor, kept.score) == ("ModelCheckpoint", "val/acc", 1.0)
        assert kept.path == "callbacks/checkpoints/epoch_001-step_24.ckpt"
        assert (folder.path / kept.path).is_file()
        assert (rank.stopped.by, rank.stopped.monitor, rank.stopped.epoch) == (
            "EarlyStopping", "val/acc", 4
        )  # fmt: skip
        assert rank.metrics["test/acc"] == 0.5
        assert rank.missing["callback"].endswith("RichProgressBar")
        assert rank.callbacks_ms_per_step["Slow"] > 4  # 5 ms, but none before a validation
    assert "stopped early by EarlyStopping on val/acc in epoch 4." in run.out
    assert "your callbacks" in (folder.path.parent / "report" / "details.md").read_text()
    assert not (folder.path.parents[2] / "checkpoints").exists()


@pytest.fixture(scope="module")
def later(
    cells: dict[str, CellFolder], shared_train: Train, elsewhere: Path
) -> dict[str, CellFolder]:
    """Two cells that start from that checkpoint, by ``max_epochs``, and one of Hugging Face."""
    folder = cells["stopped"]
    (kept,) = folder.load_result().ranks[0].checkpoints
    grids = [
        "model._target_=scored.Scored dataset._target_=scored.Data max_steps=null max_epochs=3,2 "
        f"validation=never ckpt_path={folder.path / kept.path}",
        "model._target_=scored.Keywords dataset._target_=scored.rows batch_size=16 max_steps=12 "
        "scheduler=cosine optimizer=sgd log_every_n_steps=1",
    ]
    run = shared_train(*LEAN[1:], f"hydra.sweeper.grids={json.dumps(grids)}", "-m", cwd=elsewhere)
    assert run.status == 1, run.err
    return {str(cell.load_config()["max_epochs"]): cell for _, cell in run.cells().values()}


def test_a_run_starts_from_a_checkpoint_or_says_none_is_left(later: dict[str, CellFolder]) -> None:
    (rank,) = later["3"].load_result().ranks
    assert (rank.steps_completed, rank.epochs_completed) == (24, 3)
    (attempt,) = later["2"].attempts()
    assert attempt.cause == "config"
    assert "saved after step 24 and epoch 2, where this run ends" in attempt.message


def test_hugging_faces_form_trains_along_a_schedule(later: dict[str, CellFolder]) -> None:
    rows = read_metrics(later["None"].metrics_path(0))
    rates = [row.values["learning_rate"] for row in rows if "train_loss" in row.values]
    assert (len(rates), (rates[0], rates[6])) == (12, pytest.approx((0.01, 0.005)))
    assert rates == sorted(rates, key=lambda rate: -(rate or 0.0))


SCRIPT = """
import sys
import pytorch_lightning as pl
import scalewise
from torch.utils.data import DataLoader
from lit import SlowModule
from mine import samples

if __name__ == "__main__":
    monitor = scalewise.Monitor("records", warmup_steps=2, log_every_n_steps=1, interval_s=0.2)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(sys.argv[1]),
        strategy="ddp" if sys.argv[1] != "1" else "auto",
        max_epochs=1,
        callbacks=[monitor],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(SlowModule(forward_ms=20), DataLoader(samples(240, 0), batch_size=10))
    assert monitor.sweep_folder.name == "records"
"""


def test_monitor_records_a_script_of_ones_own(
    train: Train, own_code: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One rank, then two: Lightning starts the second itself, by running the script once more."""
    (own_code / "script.py").write_text(SCRIPT)
    for ranks, name in ((1, "monitored"), (2, "monitored-2")):
        done = subprocess.run(
            [sys.executable, "script.py", str(ranks)], cwd=own_code, env=train.environment,
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said = done.stdout + done.stderr
        steps = 24 // ranks
        assert f"records go to records/{name}; the first 2 steps of {steps} are warm-up" in said
        assert f"{steps - 2} of {steps} steps were timed: scalewise report records" in said
    one, two = load_sweep(own_code / "records").cells
    _check_monitored(one, ranks=1)
    _check_monitored(two, ranks=2)
    found = differences(identity([one]), identity([two]), "devices")
    # Others may be editing this checkout.
    assert [d for d in found if not d.field.startswith("code.")] == []
    assert one.planned.config_id != two.planned.config_id
    assert main(["report", str(own_code / "records")]) == 0
    assert "SlowModule" in capsys.readouterr().out


def _check_monitored(cell: CellRecords, ranks: int) -> None:
    assert (cell.state, cell.problems) == ("done", ())
    assert (cell.result.world_size, cell.result.per_device_batch_size) == (ranks, 10)
    assert cell.provenance is not None
    steps = 24 // ranks
    for rank, series in enumerate(cell.steps):
        assert (series.rank, len(series), len(series.timed())) == (rank, steps, steps - 2)
        forward, step = (np.median(series.timed().column(n)) for n in ("forward", "step"))
        assert 20 <= forward < step
    (devices,) = cell.devices
    assert {d.id for d in devices.devices} == {f"rank{rank}" for rank in range(ranks)}
    if ranks > 1:
        assert audit_shards(cell.shards, ranks).verdict == "sharded"
