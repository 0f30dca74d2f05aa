"""Callbacks of a cell: built, kept inside its folder, and timed; its schedule of learning rates."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.utilities.model_helpers import is_overridden

from scalewise.config import CellConfig, ConfigError, SchedulerConfig, check_monitor, instantiate
from scalewise.records import EarlyStop
from scalewise.train.recording import CellRecorder, leave_out


class OwnFolder(pl.Callback):
    """Comes before callbacks of the user's, those of ``configure_callbacks`` among them.

    Checkpoints of all cells of a sweep would else meet in one folder below the working folder.
    """

    def __init__(self, recorder: CellRecorder, ours: set[int], cell: CellConfig) -> None:
        self._cell = cell
        self._root = recorder.folder.callbacks_path.resolve()
        self._recorder = recorder
        self._ours = {*ours, id(self)}
        self._is_set_up = False

    def setup(self, trainer: Any, pl_module: pl.LightningModule, stage: str) -> None:
        if self._is_set_up:
            return
        self._is_set_up = True
        # Validation and test would ask the module for new ones, which know nothing of the fit.
        trainer._callback_connector._attach_model_callbacks = lambda: None
        self._own = [one for one in trainer.callbacks if id(one) not in self._ours]
        leave_out(trainer.callbacks, self._own, self._recorder.steps.missing)
        for one in self._own:
            if isinstance(one, ModelCheckpoint) and one.dirpath is not None:
                one.dirpath = self._inside(str(one.dirpath), type(one).__name__)
        self._recorder.callbacks.watch(self._own)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse what would fail at the end of an epoch: only now all that watches is known.

        A module of the user's may log any metric while it trains: what misses one is told later.
        """
        no_data, is_epoch = "", self._cell.validation == "epoch"
        if not self._cell.unscored() and trainer.is_global_zero:  # others may have a smaller share
            no_data = note_unscored(trainer, self._recorder, self._cell.data_source.target)
        if is_epoch and self._recorder.brings_optimizer:
            return
        schedules = trainer.lr_scheduler_configs
        watched = [("lr_scheduler", one.monitor) for one in schedules if one.reduce_on_plateau]
        if is_epoch:
            watched += [(type(one).__name__, getattr(one, "monitor", None)) for one in self._own]
        for key, metric in watched:
            check_monitor(key, metric, self._cell, no_data)

    def _inside(self, path: str, name: str) -> str:
        if Path(path).is_relative_to(self._root):
            return path
        if not Path(path).is_relative_to(Path.cwd()):
            raise ConfigError(
                f"callbacks: found {name} with dirpath={path}, where cells overwrite one another; "
                "allowed: a relative path, which lies in the folder of the cell"
            )
        return str(self._root / Path(path).relative_to(Path.cwd()))


def note_unscored(trainer: pl.Trainer, recorder: CellRecorder, data_name: str) -> str:
    """Why Lightning has no batch to score; empty where it has, or has not asked for any yet.

    Of a module of the user's it is put on record too. Lightning alone asks for loaders.
    """
    is_asked = trainer.val_dataloaders is not None or not trainer.enable_validation
    validates = is_overridden("validation_step", trainer.lightning_module)
    if any(trainer.num_val_batches) or not (is_asked and validates):
        return ""
    why = (
        f"{data_name} has no validation set of a batch or more for each rank; allowed: data with "
        "one (.validation, or val_dataloader)"
    )
    if recorder.brings_optimizer:
        recorder.steps.missing["validation"] = why
    return why


def can_score(trainer: pl.Trainer) -> bool:
    """Whether the module validates, and data may come, its own and what ``setup`` made, too.

    None for a loader, which Lightning refuses, is then as good as an empty list of them.
    """
    source = trainer.validate_loop._data_source
    if source.is_defined() and source.is_module():
        owner: Any = source.instance
        give = owner.val_dataloader
        owner.val_dataloader = lambda: [] if (given := give()) is None else given
    return source.is_defined() and is_overridden("validation_step", trainer.lightning_module)


class CellTrainer(pl.Trainer):
    """Lightning's, which tells who ended a run, and how long it is to be."""

    asked: EarlyStop | None = None
    """Who asked first for an end before its time."""
    _should_stop = False

    @property
    def should_stop(self) -> bool:
        """Whether training is to end, at the next place where Lightning looks."""
        return self._should_stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        if value and self.asked is None:
            who = sys._getframe(1).f_locals.get("self")
            monitor = getattr(who, "monitor", None)
            self.asked = EarlyStop(
                by="a function" if who is None else type(who).__name__,
                epoch=self.current_epoch + 1,
                monitor=monitor if isinstance(monitor, str) else None,
            )
        self._should_stop = value

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Raises :class:`ConfigError` where Lightning gives infinity: no schedule can use that."""
        total = super().estimated_stepping_batches
        if math.isinf(total):
            raise ConfigError(
                "max_steps: found null, and the module asks how many steps there will be, as "
                "schedules of learning rates do, which nobody knows where time ends the run; "
                "allowed: a number, or max_epochs; add repeats=auto to run until it is decided"
            )
        return total


def build_schedule(
    config: SchedulerConfig, optimizer: torch.optim.Optimizer, trainer: pl.Trainer
) -> dict[str, Any]:
    """The schedule in Lightning's form. Raises ConfigError."""
    length = 1
    if config.of_whole_run is not None:
        steps = int(trainer.estimated_stepping_batches)
        if config.interval == "epoch":
            trainer.fit_loop.setup_data()  # it does nothing the second time
            batches = float(trainer.num_training_batches) / trainer.accumulate_grad_batches
            steps = math.ceil(steps / math.ceil(batches))
        length = max(1, steps // config.frequency)
    built = instantiate("scheduler", config.component_for(length), optimizer=optimizer)
    watched = {} if config.monitor is None else {"monitor": config.monitor}
    when = {"interval": config.interval, "frequency": config.frequency}
    return {"scheduler": built, **when, **watched}
