"""What a monitored fit leaves when its script raises, exits, or is killed."""

import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.demos.boring_classes import BoringModel, RandomDataset
from pytorch_lightning.tuner import Tuner
from pytorch_lightning.utilities.exceptions import SIGTERMException
from torch.utils.data import DataLoader

from fakes.small_fit import small_trainer
from scalewise.analysis import CellRecords, analyse, load_sweep
from scalewise.records import CellFolder, DeviceInfo, EarlyStop, SweepFolder, read_device_series
from scalewise.records.model import FRESH_START
from scalewise.records.state import HeartbeatWriter
from scalewise.train import Monitor
from scalewise.train.monitored import FitRecords, own_folder
from scalewise.train.recording.callbacks import CallbackTimes, early_stop, kept_checkpoints

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice


def begun(folder: Path) -> FitRecords:
    records = FitRecords(CellFolder(folder / "mine"), 0)
    records.begin([DeviceInfo("cpu", "a cpu")])
    return records


def read(folder: Path) -> CellRecords:
    (cell,) = load_sweep(folder).cells
    return cell


@pytest.mark.parametrize(
    ("error", "state", "cause", "message"),
    [(ValueError("mine\nmore"), "failed", "exception", "ValueError: mine ..."),
     (MemoryError(), "failed", "oom", "MemoryError"),
     (SystemExit(3), "failed", "exit", "the script left with exit status 3 amid the fit"),
     (SystemExit(), "failed", "exit", "the script left with exit status 0 amid the fit"),
     (SIGTERMException(), "interrupted", "signal", "ended by SIGTERM"),
     (KeyboardInterrupt(), "interrupted", "interrupted", "interrupted by Ctrl-C (SIGINT)")],
)  # fmt: skip
def test_what_it_broke_off_of_stands_in_the_record(
    tmp_path: Path, error: BaseException, state: str, cause: str, message: str
) -> None:
    said = begun(tmp_path).fail(error, 20)
    cell = read(tmp_path)
    assert said and f"no result: {cell.ending.message}. What was recorded: " in said
    assert (cell.state, cell.attempts[0].cause) == (state, cause)
    assert cell.ending.message == f"rank 0: {message} (after 20 steps)"
    assert not (cell.path / "running.json").exists()
    assert cell.problems == (), "nothing was lost of what it had not begun to tell"


def test_the_rank_that_speaks_first_is_the_culprit(tmp_path: Path) -> None:
    records = begun(tmp_path)
    assert FitRecords(CellFolder(tmp_path / "mine"), 1).fail(ValueError("mine"), 3)
    assert records.fail(RuntimeError("connection closed by peer"), 3) is None
    assert read(tmp_path).ending.message == "rank 1: ValueError: mine (after 3 steps)"


def test_who_was_killed_gives_no_more_signs_of_life(tmp_path: Path) -> None:
    records, folder = begun(tmp_path), CellFolder(tmp_path / "mine")
    assert folder.load_running().number == 1
    with closing(HeartbeatWriter(folder.heartbeat_path(0))) as heartbeat:
        heartbeat.beat(40, 320)
    assert read(tmp_path).state == "running"
    assert read(tmp_path).ending.message.endswith("; last seen after 40 steps")
    running = tmp_path / "mine" / "running.json"
    before = running.stat().st_mtime_ns
    deadline = time.monotonic() + 5
    while running.stat().st_mtime_ns == before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running.stat().st_mtime_ns > before
    records.end()
    records.begin([DeviceInfo("cpu", "a cpu")])
    os.utime(running, (time.time() - 20, time.time() - 20))
    assert read(tmp_path).state == "interrupted"
    records.end()


def test_of_several_hosts_each_samples_its_ranks_and_one_tells_of_itself(tmp_path: Path) -> None:
    folder, devices = CellFolder(tmp_path / "mine"), [DeviceInfo("cpu", f"CPU {r}") for r in (0, 1)]
    first, second = (FitRecords(folder, rank) for rank in (0, 1))
    first.tell_host([0], devices)
    assert list(folder.load_provenance().devices) == devices[:1]
    second.sample([1], devices, [1, os.getpid()], interval_s=0.1)
    second.stop_sampling()
    (path,) = folder.device_series_paths()
    assert [device.rank for device in read_device_series(path).devices] == [1]


def fit(folder: Path, module: pl.LightningModule, samples: int = 48, batch_size: int = 4) -> None:
    trainer = small_trainer(max_steps=12, callbacks=[Monitor(folder, devices=False)])
    trainer.fit(module, DataLoader(RandomDataset(32, samples), batch_size=batch_size))


@pytest.mark.parametrize(
    ("hook", "steps"), [("configure_optimizers", 0), ("on_train_epoch_end", 12)]
)
def test_a_script_that_raises_is_recorded_and_says_where(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, hook: str, steps: int
) -> None:
    def fail() -> None:
        raise ValueError("mine")

    module = BoringModel()
    setattr(module, hook, fail)
    with caplog.at_level(logging.INFO), pytest.raises(ValueError, match="mine"):
        fit(tmp_path, module)
    cell = read(tmp_path)
    said = f"rank 0: ValueError: mine (after {steps} steps)"
    assert (cell.state, cell.ending.message) == ("failed", said)
    assert f"no result: {said}. What was recorded: scalewise report {tmp_path}" in caplog.text


def test_the_first_fit_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module, trainer = BoringModel(), small_trainer(max_steps=9, callbacks=[Monitor("mine")])
    module.batch_size = 1
    Tuner(trainer).scale_batch_size(module, max_trials=1, steps_per_trial=1)
    Tuner(trainer).lr_find(module, num_training=5, update_attr=False)
    for act in (trainer.validate, trainer.fit, trainer.test, trainer.fit):
        act(module)
    cell = read(tmp_path / "mine")
    assert (cell.state, len(cell.steps[0]), cell.problems) == ("done", 9, ())
    assert not (tmp_path / "metrics").exists(), "nothing beside its folder"


def test_a_fit_that_goes_on_says_so_and_one_without_a_step_has_no_result(tmp_path: Path) -> None:
    kept, trainer = tmp_path / "kept.ckpt", small_trainer(max_steps=9)
    trainer.fit(BoringModel())
    trainer.save_checkpoint(kept)
    for name, steps in (("on", 12), ("none", 9)):
        trainer = small_trainer(max_steps=steps, callbacks=[Monitor(tmp_path / name)])
        trainer.fit(BoringModel(), ckpt_path=kept)
    remarks = analyse(load_sweep(tmp_path / "on")).remarks
    why = {one.figures.get("figure"): one.figures.get("why") for one in remarks}
    assert "after 9 earlier steps" in why[FRESH_START]
    none = read(tmp_path / "none")
    assert (none.state, none.ending.cause, none.problems) == ("failed", "config", ())


def test_runs_that_begin_together_have_folders_and_repeats_of_their_own(tmp_path: Path) -> None:
    begun = threading.Barrier(8)

    def begin() -> None:
        begun.wait()
        records = FitRecords(CellFolder(tmp_path / own_folder(tmp_path, "monitored")), 0)
        records.begin([DeviceInfo("cpu", "a CPU")])
        records.repeat_of({"all": "the same"}, 1)
        records.end()

    with ThreadPoolExecutor(8) as scripts:
        [*scripts.map(lambda _: begin(), range(8))]
    planned = SweepFolder(tmp_path).load_plan().cells
    assert len({cell.name for cell in planned}) == 8
    assert sorted(cell.repeat for cell in planned) == list(range(8))


def test_fits_on_a_host_know_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where each of several SLURM tasks starts a launcher of its own with the same script."""
    monkeypatch.setenv("SCALEWISE_RUNTIME_DIR", str(tmp_path / "runtime"))
    fit(tmp_path / "before", BoringModel(), samples=9, batch_size=4)  # 4, 4, 1, and again
    earlier = read(tmp_path / "before").result
    assert earlier.co_tenants == ()
    sizes = (earlier.per_device_batch_size, earlier.global_batch_size)
    assert sizes == (4, 4), "the short batch that ends an epoch does not lower them"
    both = tmp_path / "records"
    fits = [FitRecords(CellFolder(both / own_folder(both, name)), 0) for name in ("a", "b")]
    for one in fits:
        one.begin([DeviceInfo("cpu", "a cpu")])
    for one in fits:
        one.finish(earlier.ranks, "single")
    cells = load_sweep(both).cells
    told = {cell.planned.name: cell.result.co_tenants for cell in cells if cell.result}
    assert told == {"a": ("b",), "b": ("a",)}


@pytest.mark.parametrize(
    ("steps", "max_steps", "epochs", "max_epochs", "early"),
    [(10, 10, 1, -1, False), (9, 10, 1, -1, True), (9, -1, 2, 2, False), (9, -1, 1, 2, True),
     (9, -1, 9, None, True)],
)  # fmt: skip
def test_who_asks_for_an_end_that_was_due_stopped_nothing(
    steps: int, max_steps: int, epochs: int, max_epochs: int | None, early: bool
) -> None:
    done = SimpleNamespace(current=SimpleNamespace(processed=epochs))
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(max_steps=max_steps), epoch_progress=done)
    trainer: Any = SimpleNamespace(fit_loop=loop, max_epochs=max_epochs, global_step=steps)
    assert early_stop(trainer) is None, "nobody asked"
    trainer.asked = EarlyStop("EarlyStopping", epochs, None)
    assert early_stop(trainer) == (trainer.asked if early else None)


@pytest.mark.parametrize(
    ("monitor", "save_top_k", "kept", "missing"),
    [("f1", 1, 0, ["checkpoint"]), ("f1", 0, 0, []), ("now", 1, 1, []), (None, 1, 1, [])],
)
def test_who_was_to_keep_the_best_and_saw_no_such_metric_is_told(
    tmp_path: Path, monitor: str | None, save_top_k: int, kept: int, missing: list[str]
) -> None:
    keeps = ModelCheckpoint(tmp_path, monitor=monitor, save_top_k=save_top_k)
    also = ModelCheckpoint(tmp_path, monitor="f2", save_top_k=len(missing))
    trainer = small_trainer(max_steps=1, enable_checkpointing=True, callbacks=[keeps, also])
    module, found = BoringModel(), dict[str, str]()
    module.on_train_batch_end = lambda *_: module.log("now", 1.0)
    trainer.fit(module, DataLoader(RandomDataset(32, 8), batch_size=4))
    assert (len(kept_checkpoints(trainer, tmp_path, found)), list(found)) == (kept, missing)
    assert all(name in why for name in ("f1", "f2", "now") for why in found.values())


def test_what_callbacks_take_is_the_mean_over_timed_steps() -> None:
    times = CallbackTimes()
    assert not times.on
    for ms, is_timed in ((9, False), (3, True), (0, True)):
        times._pending_ns["Mine"] += int(ms * 1e6)
        times.end_step(is_timed)
    assert times.ms_per_step == {"Mine": 1.5}
