"""A user's own model, data and script, from a folder of his own, with full records."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fakes.step_files import common_steps
from fakes.train_command import LEAN, Train
from scalewise.analysis import CellRecords, load_sweep
from scalewise.analysis.balance import audit_shards, measure_balance
from scalewise.analysis.comparability import differences, identity
from scalewise.cli import main
from scalewise.host import CLASS_FILES
from scalewise.records import CellFolder, StepSeries, read_shard, read_steps

DRY = """
from mine import Module

class Dry(Module):
    def train_dataloader(self):
        return (batch for batch in super().train_dataloader())
"""
INJECTED_MS = {
    "data_wait": 12.0, "h2d": 14.0, "forward": 16.0, "backward": 18.0, "optimizer": 20.0,
    "other": 22.0,
}  # fmt: skip
OWN = "model._target_=mine.Net model.width=12 dataset._target_=mine.Data batch_size=16"
SLOW = "model._target_=mine.SlowModule"
CELLS = {
    "single": f"strategy=single {OWN}",
    "ddp": f"strategy=ddp {OWN}",
    "decides": f"strategy=ddp {SLOW} dataset._target_=mine.Module +dataset.batch_size=10",
    "too_large": f"strategy=single {SLOW} dataset._target_=mine.Module +dataset.batch_size=1000",
    "read_once": f"strategy=single {SLOW} dataset._target_=dry.Dry",
    "delayed": f"strategy=ddp {SLOW} batch_size=16 dataset._target_=mine.SlowData "
    f"+dataset.batch_ms={INJECTED_MS['data_wait']} +model.rank=1 "
    + " ".join(f"+model.{p}_ms={ms}" for p, ms in INJECTED_MS.items() if p != "data_wait"),
}
"""Cell to what is typed for it. ``SLOW`` ones have data that do something of their own, or all is
late."""


@pytest.fixture(scope="module")
def cells(shared_train: Train, elsewhere: Path) -> dict[str, CellFolder]:
    """The cells of one sweep by their names in ``CELLS``."""
    (elsewhere / "dry.py").write_text(DRY)
    grids = f"hydra.sweeper.grids={json.dumps([*CELLS.values()])}"
    run = shared_train(*LEAN, "max_steps=30", grids, "-m", cwd=elsewhere)
    assert run.status == 1, run.err
    assert "scalewise resume" not in run.err, "the same command would fail in the same way"
    return {
        name: folder
        for planned, folder in run.cells().values()
        for name, typed in CELLS.items()
        if {*typed.split()} <= {*planned.overrides}
    }


def test_a_model_and_data_of_ones_own_train_with_full_records(cells: dict[str, CellFolder]) -> None:
    result = cells["ddp"].load_result()
    assert result.world_size == 2
    assert result.ranks[0].parameters_total == 8 * 12 + 12 + 12 * 4 + 4
    assert result.ranks[0].gradient_bytes == 4 * result.ranks[0].parameters_total
    config = cells["ddp"].load_config()
    assert config["model"] == {"_target_": "mine.Net", "width": 12}
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
    expected = (x[:, :4].argmax(1) == y).mean()
    assert alone["val_accuracy"] == pytest.approx(expected, rel=1e-6)


def test_a_datamodule_of_ones_own_decides_on_its_batches(cells: dict[str, CellFolder]) -> None:
    folder = cells["decides"]
    result = folder.load_result()
    assert [rank.own_optimizer for rank in result.ranks] == ["SlowSgd"] * 2
    assert all(rank.own_batches for rank in result.ranks)
    assert "mine.Module has no validation set" in result.ranks[0].missing["validation"]
    report = folder.path.parent / "report" / "report.md"
    assert "optimizer=its_own_(SlowSgd)" in report.read_text()
    assert (result.per_device_batch_size, result.global_batch_size) == (10, 20)
    shards = [read_shard(folder.shard_path(rank), rank) for rank in range(2)]
    assert audit_shards(shards, 2, 20).verdict == "sharded"


@pytest.mark.parametrize(
    ("experiment", "message"),
    [
        ("too_large", "no batch came from Module, so nothing was trained"),
        ("read_once", "no batch came in epoch 2, after "),
    ],
)
def test_a_datamodule_that_gives_no_batch_fails_and_says_in_which_epoch(
    cells: dict[str, CellFolder], experiment: str, message: str
) -> None:
    (attempt,) = cells[experiment].attempts()
    assert attempt.cause == "config"
    assert message in attempt.message


@pytest.fixture
def delayed(cells: dict[str, CellFolder]) -> tuple[StepSeries, StepSeries]:
    """Both ranks of a cell whose second has a different delay in every phase, all at once."""
    folder = cells["delayed"]
    first, second = (read_steps(folder.steps_path(rank), rank) for rank in (0, 1))
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


SCRIPT = """
import sys
import pytorch_lightning as pl
import scalewise
from torch.utils.data import DataLoader
from mine import SlowModule, samples

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
    assert cell.state == "done"
    assert cell.problems == ()
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
