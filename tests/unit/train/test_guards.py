"""A user's loader that has run dry ends his fit."""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, LambdaCallback, LearningRateMonitor
from pytorch_lightning.demos.boring_classes import BoringModel, RandomDataset
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from fakes.recorded import rank_summary
from fakes.small_fit import composed_cell, small_trainer
from scalewise.config import ConfigError
from scalewise.records import CellFolder, DeviceInfo
from scalewise.train import experiment
from scalewise.train.build import build_data
from scalewise.train.callbacks import OwnFolder, build_schedule, can_score, note_unscored
from scalewise.train.experiment import CellTrainer, refuse_empty_epoch, refuse_untrained
from scalewise.train.recording import leave_out, planned_steps

pytestmark = pytest.mark.timeout(60)


class Nothing(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(())


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        experiment._silence_warnings()
        yield


def two_batches() -> DataLoader[Tensor]:
    return DataLoader(RandomDataset(32, 8), batch_size=4)


def fit(loader: Iterable[Any]) -> pl.Trainer:
    """Ten steps in as many epochs as it takes."""
    guard = LambdaCallback(on_train_epoch_end=refuse_empty_epoch)
    trainer = small_trainer(max_steps=10, max_epochs=-1, callbacks=[guard])
    trainer.fit(BoringModel(), loader)
    return trainer


@pytest.mark.parametrize(
    ("changes", "found"),
    [({"steps_without_loss": 1}, "1 of 60 steps without a loss"), ({"metrics": {}}, None),
     ({"metrics": {"train_loss": None}}, "a train_loss that is not finite"),
     ({"metrics": {"train_loss": 2.0, "val_loss": None}, "steps_without_loss": 0}, None)],
)  # fmt: skip
def test_a_rehearsal_whose_rank_did_not_train_in_every_step_fails(
    changes: dict[str, Any], found: str | None
) -> None:
    rank = rank_summary(0, DeviceInfo("cpu", "CPU", None, 0), 60, 8, metric_rows=1, **changes)
    refuses = pytest.raises(ConfigError, match=f"rehearse: found {found}; allowed: a finite")
    with refuses if found else nullcontext():
        refuse_untrained(rank)


@pytest.mark.parametrize(
    ("loader", "said"),
    [((batch for batch in two_batches()), "in epoch 2, after 2 steps"),
     (DataLoader(Nothing(), batch_size=4), "in epoch 1, after 0 steps")],
    ids=["generator", "empty stream"],
)  # fmt: skip
def test_an_epoch_without_a_batch_is_refused(loader: Any, said: str) -> None:
    assert fit(two_batches()).global_step == 10
    with pytest.raises(ConfigError, match=said):
        fit(loader)


class Scored(BoringModel):
    """It logs a metric in training that is called as those of validation are."""

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        self.log("val/acc", 1.0)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val/loss", self.step(batch))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return [optimizer], [{"scheduler": schedule, "monitor": "val/loss"}][: self.is_validated]


@pytest.mark.filterwarnings("ignore:Total length")
@pytest.mark.parametrize(
    ("typed", "where", "metric", "own", "refused"),
    [("validation=end", "setup", "val/loss", True, "lr_scheduler.monitor: found val/loss with"),
     ("validation=never", "", "val/acc", True, ""),
     ("trainer.limit_val_batches=0", "setup", "val/acc", False, "lr_scheduler.monitor: found"),
     ("", "setup", "val/loss", True, ""), ("", "module", "val/loss", True, ""),
     ("", "", "val/acc", True, ""),
     ("", "", "val/acc", False, "EarlyStopping.monitor: found val/acc, but tests.Mine has no"),
     ("", "empty", "val/loss", False, "lr_scheduler.monitor: found val/loss, but tests.Mine")],
)  # fmt: skip
def test_what_waits_for_no_validation_is_refused_before_the_first_step(
    tmp_path: Path, typed: str, where: str, metric: str, own: bool, refused: str
) -> None:
    """But a module of the user's may log any metric in training."""
    recorder = Mock(folder=CellFolder(tmp_path), brings_optimizer=own)
    recorder.steps.missing, asked = {}, []
    cell = composed_cell("validation=epoch", "dataset._target_=tests.Mine", *typed.split())
    callbacks = [OwnFolder(recorder, set(), cell), EarlyStopping(metric)]
    trainer = small_trainer(max_epochs=2, callbacks=callbacks, num_sanity_val_steps=0)
    module, held = Scored(), pl.LightningDataModule()

    def loader() -> DataLoader[Tensor]:
        asked.append(where)
        size = 9 if where == "empty" else 4
        return DataLoader(RandomDataset(32, 8), batch_size=size, drop_last=True)

    module.is_validated = bool(where)
    module.train_dataloader = held.train_dataloader = two_batches
    module.val_dataloader = loader if where in ("module", "empty") else None
    held.setup = lambda stage: setattr(held, "val_dataloader", loader)
    with pytest.raises(ConfigError, match=f"^{refused}") if refused else nullcontext():
        trainer.fit(module, datamodule=held if where == "setup" else None)
    assert trainer.global_step == (0 if refused else 4)
    assert asked == [where] * bool(where), "by Lightning alone"
    assert bool(recorder.steps.missing) == (own and not (where or typed))


@pytest.mark.parametrize(
    ("method", "typed", "refused"),
    [("test_dataloader", "", ""),
     ("test_dataloader", "test=true", "test: found true, but tests.Mine has no test_dataloader"),
     ("train_dataloader", "", "dataset: found own_loaders beside model._target_=tests.Mine")],
)  # fmt: skip
def test_loaders_of_the_module_itself_are_taken(method: str, typed: str, refused: str) -> None:
    """Its hooks are called by Lightning, each once."""
    kind = type("Mine", (BoringModel,), {method: getattr(pl.LightningModule, method)})
    module, asked = kind(), []
    module.setup = lambda *, stage: asked.append(stage)
    module.prepare_data = lambda: asked.append("prepare")
    cell = composed_cell("model._target_=tests.Mine", "dataset=own_loaders", *typed.split())
    with pytest.raises(ConfigError, match=f"^{refused}") if refused else nullcontext():
        data = build_data(cell, Mock(), module)
        small_trainer(max_steps=1).fit(module, **data)
        assert data["datamodule"].val_dataloader == module.val_dataloader
    assert asked == ([] if refused else ["prepare", "fit"])


@pytest.mark.filterwarnings("ignore:Total length")
@pytest.mark.parametrize("given", [None, [], [two_batches()]])
def test_after_training_what_there_is_to_score_is_asked_for_once(given: Any) -> None:
    module, asked = Scored(), []
    module.is_validated = False
    module.val_dataloader = lambda: asked.append(1) or given
    trainer = small_trainer(max_epochs=1, limit_val_batches=0)
    trainer.fit(module, two_batches())
    assert can_score(trainer)
    trainer.limit_val_batches = 1.0
    trainer.validate(module, verbose=False)
    found = note_unscored(trainer, Mock(brings_optimizer=False), "mine")
    assert (asked, bool(found)) == ([1], not given)


@pytest.mark.parametrize(
    ("typed", "metric", "why"),
    [("validation=end", "f1", "validation=end, which"),
     ("validation=end", "train_los", "it was not there by then"),
     ("validation=epoch", "val-f1", "no set"), ("validation=epoch", "f1", "")],
)  # fmt: skip
def test_lightnings_error_says_why_a_metric_did_not_come(typed: str, metric: str, why: str) -> None:
    trainer = small_trainer(max_epochs=1, callbacks=[EarlyStopping(metric)])
    with pytest.raises(RuntimeError, match=metric) as caught:
        trainer.fit(BoringModel(), two_batches())
    cell, missing = composed_cell(typed), {"validation": "no set"}
    found = experiment.why_not_logged(caught.value, cell, missing)
    assert found.startswith(why) and bool(found) == bool(why)
    assert bool(experiment.why_not_logged(caught.value, cell, {})) == bool(why)
    assert not experiment.why_not_logged(RuntimeError("other"), cell, missing)


def test_callbacks_of_a_module_act_but_for_those_whose_work_a_cell_does() -> None:
    module, mine = BoringModel(), type("LearningRateMonitor", (LambdaCallback,), {})()
    brought = [[LearningRateMonitor(), mine], [pl.callbacks.LearningRateFinder()]]
    module.configure_callbacks = Mock(side_effect=brought)
    keeps = [OwnFolder(MagicMock(), set(), composed_cell()) for _ in brought]
    trainer, again = (small_trainer(max_steps=1, callbacks=[one]) for one in keeps)
    trainer.fit(module)
    trainer.validate(module, verbose=False)
    assert trainer.callbacks == [keeps[0], mine]
    leave_out([], [pl.callbacks.TQDMProgressBar()], told := {"callback": "the work of A"})
    assert told == {"callback": "the work of A and TQDMProgressBar"}
    with pytest.raises(ConfigError, match="LearningRateFinder; allowed: "):
        again.fit(module)


@pytest.mark.parametrize(
    ("when", "length"), [("interval=step", 12), ("interval=epoch", 4), ("frequency=5", 2)]
)
def test_a_schedule_of_the_whole_run_counts_steps_or_begun_epochs(when: str, length: int) -> None:
    cell = composed_cell("scheduler=cosine", f"scheduler.{when}", "max_steps=30")
    trainer: Any = SimpleNamespace(
        estimated_stepping_batches=12, num_training_batches=5, accumulate_grad_batches=2,
        fit_loop=SimpleNamespace(setup_data=lambda: None),
    )  # fmt: skip
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    assert build_schedule(cell.scheduler, optimizer, trainer)["scheduler"].T_max == length


def test_a_schedule_over_all_steps_is_refused_where_time_ends_the_run() -> None:
    quiet: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    trainer = CellTrainer(max_steps=-1, max_epochs=-1, **quiet)
    with pytest.raises(ConfigError, match=r"^max_steps: found null, and the module asks how"):
        _ = trainer.estimated_stepping_batches
    assert planned_steps(trainer) is None
    bounded = CellTrainer(max_steps=7, max_epochs=-1, **quiet)
    assert bounded.estimated_stepping_batches == 7
    bounded.should_stop = True
    first = bounded.asked
    bounded.should_stop = True
    assert bounded.asked is first and (first.by, first.epoch) == ("a function", 1)
