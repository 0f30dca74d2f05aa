"""Full records of a training script of one's own: one callback, no configuration."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy, SingleDeviceStrategy
from pytorch_lightning.utilities import rank_zero_info

from scalewise.config import TRACKERS, ConfigError, TrackerName, default_project, require
from scalewise.host import Mirror, from_here
from scalewise.records import FRESH_START, CellFolder, DeviceInfo
from scalewise.train.monitored import (
    FitRecords,
    describe_model,
    describe_optimizers,
    full_name,
    live_device,
    new_sweep_folder,
    own_folder,
    seed_set,
)
from scalewise.train.rank import gathered
from scalewise.train.recording import CellRecorder, planned_steps

_log = logging.getLogger(__name__)


class Monitor(pl.Callback):
    """Records a ``Trainer.fit`` of any LightningModule, on any strategy, as scalewise cells are.

        trainer = Trainer(callbacks=[scalewise.Monitor()])

    The records form a sweep: ``scalewise report FOLDER`` reads them. Runs into the same ``folder``
    add to it, one after another: equal ones are repeats, so that figures get intervals, and one
    device against several gets a verdict. ``scalewise compare A B`` takes two folders; what has to
    be equal stands in :func:`describe_fit`. Where the records are is said
    when the fit begins and when it ends.

    Put it first among the callbacks: what the others take then counts as ``other``. One Monitor
    records its first fit, as long as that lasts; those of Lightning's ``Tuner`` do not count.

    Args:
        folder: where the records go; a new folder below ``multirun/`` by default.
        warmup_steps: first steps, excluded from every timing: a fit that is not longer is not
            timed at all.
        log_every_n_steps: how often the loss is read.
        devices: sample the GPUs or, without any, the ranks' processes.
        interval_s: seconds between two samples, at least 0.1.
        tracking: who mirrors the records: ``("trackio", "wandb")``, either, or nobody, as by
            default. Both need no account: WandB stays offline unless you are logged in.
        name: what the run is called in the report and in the trackers.

    Raises:
        ValueError: for an argument that is not allowed, naming what is.
    """

    def __init__(
        self,
        folder: Path | str | None = None,
        warmup_steps: int = 10,
        log_every_n_steps: int = 10,
        devices: bool = True,
        interval_s: float = 1.0,
        tracking: Sequence[TrackerName] = (),
        name: str = "monitored",
    ) -> None:
        require("warmup_steps", warmup_steps, warmup_steps >= 0, "0 or more")
        require("log_every_n_steps", log_every_n_steps, log_every_n_steps >= 1, "1 or more")
        require("interval_s", interval_s, interval_s >= 0.1, "0.1 or more")
        known = not isinstance(tracking, str) and set(tracking) <= set(TRACKERS)
        require("tracking", tracking, known, f"a list of {' and '.join(TRACKERS)}")
        self._warmup_steps = warmup_steps
        self._log_every_n_steps = log_every_n_steps
        self._sweep_folder = None if folder is None else Path(folder)
        self._sample_devices = devices
        self._interval_s = interval_s
        self._trackers = tuple(tracking)
        self._name = name
        self._mirror: Mirror | None = None
        self._records: FitRecords | None = None
        self._recorder: CellRecorder | None = None  # a callback too, as long as the fit lasts
        self._devices: tuple[DeviceInfo, ...] = ()

    @property
    def sweep_folder(self) -> Path:
        """Where the records are. Raises RuntimeError before training has begun."""
        if self._sweep_folder is None:
            raise RuntimeError("Monitor.sweep_folder is known once training has begun")
        return self._sweep_folder

    def setup(self, trainer: Any, pl_module: pl.LightningModule, stage: str) -> None:
        if stage != "fit" or any(getattr(one, "_early_exit", False) for one in trainer.callbacks):
            return
        if self._records is not None:
            rank_zero_info("scalewise: this fit is not recorded: a Monitor records its first one")
            return
        chosen = self._sweep_folder or new_sweep_folder()
        mine = ("", "")
        if trainer.is_global_zero:
            mine = (str(chosen.resolve()), own_folder(chosen, self._name))
        parent, name = trainer.strategy.broadcast(mine)
        self._sweep_folder = Path(parent)
        folder, device = CellFolder(Path(parent) / name), live_device(trainer.strategy.root_device)
        self._devices = gathered(device, trainer.world_size)
        self._records = FitRecords(folder, trainer.global_rank)
        if trainer.is_global_zero:
            self._records.begin(self._devices)
        self._recorder = CellRecorder(folder, device, self._warmup_steps, self._log_every_n_steps)
        # After this one: Lightning, which goes through them now, sets it up next.
        trainer.callbacks.insert(trainer.callbacks.index(self) + 1, self._recorder)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._recorder is None or self._records is None:
            return
        if before := trainer.global_step:
            self._recorder.steps.missing[FRESH_START] = f"began after {before:,} earlier steps"
        pids, here = gathered(os.getpid(), trainer.world_size), ranks_here(trainer)
        if trainer.is_global_zero:
            config = describe_fit(trainer, pl_module, self._warmup_steps, self._trackers)
            self._records.repeat_of(config, trainer.world_size)
            self._records.tell_host(here, self._devices)
            if self._trackers:
                self._mirror = Mirror(self.sweep_folder, _log.warning)
            planned = planned_steps(trainer)
            rank_zero_info(
                f"scalewise: records go to {from_here(self._recorder.folder.path)}; the first "
                f"{self._warmup_steps} steps{f' of {planned - before}' if planned else ''}"
                f"{f' after {before:,} earlier ones' if before else ''} are warm-up and not timed"
            )
        if trainer.local_rank == 0 and self._sample_devices:
            self._records.sample(here, self._devices, pids, self._interval_s)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._recorder is not None and not self._recorder.steps.steps:
            nothing = "found a fit without a step; allowed: data, and max_steps or max_epochs ahead"
            self.on_exception(trainer, pl_module, ConfigError(nothing))
            return
        recorder = self._end(trainer)
        if recorder is None or self._records is None:
            return
        self._records.stop_sampling()
        recorder.close(trainer, pl_module)
        trainer.strategy.barrier("scalewise-monitor")
        if trainer.is_global_zero:
            ranks = tuple(recorder.folder.load_rank(rank) for rank in range(trainer.world_size))
            self._records.finish(ranks, strategy_name(trainer))
            if self._mirror is not None:
                self._mirror.finish()
            rank_zero_info(self._records.result_in_brief(recorder.steps.steps, self._warmup_steps))

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        recorder = self._end(trainer)
        if recorder is None or self._records is None:
            return
        if message := self._records.fail(exception, recorder.steps.steps):
            _log.warning(message)
        recorder.abandon()
        if self._mirror is not None:
            self._mirror.let_go()

    def _end(self, trainer: Any) -> CellRecorder | None:
        """The fit that was recorded is over; returns what recorded it, if one was."""
        recorder, self._recorder = self._recorder, None
        trainer.callbacks = [one for one in trainer.callbacks if one is not recorder]
        return recorder


_STRATEGIES: Mapping[type, str] = {
    SingleDeviceStrategy: "single",
    DDPStrategy: "ddp",
    FSDPStrategy: "fsdp",
}
_PRECISIONS: Mapping[str, str] = {"32-true": "fp32", "16-mixed": "fp16-mixed"}
"""Lightning's names that differ from scalewise's; the others are the same, or are only its own."""


def describe_fit(
    trainer: pl.Trainer, module: pl.LightningModule, warmup_steps: int, trackers: Sequence[str]
) -> dict[str, Any]:
    """The configuration of this fit in scalewise's words, once data and optimizers are set up.

    Two monitored runs are comparable (``scalewise compare``), and repeats of each other, where all
    of it agrees. The rest of the script, the number of devices among it, is not part of it: the
    records tell what ran.
    """
    loader = trainer.train_dataloader
    dataset = getattr(loader, "dataset", loader)
    batch_size = getattr(loader, "batch_size", None)
    return {
        "model": describe_model(module),
        "dataset": {
            "name": type(dataset).__name__,
            "class": full_name(type(dataset)),
            "samples": len(dataset) if isinstance(dataset, Sized) else None,
            "workers": getattr(loader, "num_workers", None),
        },
        "strategy": {"name": strategy_name(trainer)},
        "hardware": {"name": "auto"},
        "optimizer": describe_optimizers(trainer.optimizers),
        "precision": {"name": _precision_name(trainer)},
        "execution": {"name": "eager"},
        # Per process; None where the loader has a batch sampler of its own.
        "batch_size": batch_size if isinstance(batch_size, int) else None,
        # Lightning's -1 is no limit, which scalewise's configurations write as null.
        "max_steps": None if trainer.max_steps == -1 else trainer.max_steps,
        "max_epochs": None if trainer.max_epochs == -1 else trainer.max_epochs,
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "gradient_clip_norm": trainer.gradient_clip_val,
        "warmup_steps": warmup_steps,
        **seed_set(),
        "tracking": {"name": "monitor", "trackers": list(trackers), "project": default_project()},
    }


def ranks_here(trainer: pl.Trainer) -> range:
    """The ranks of this process's host; hosts have equally many."""
    first = trainer.global_rank - trainer.local_rank
    return range(first, first + trainer.world_size // trainer.num_nodes)


def strategy_name(trainer: pl.Trainer) -> str:
    """As scalewise names it where it is Lightning's own, else the name of its class.

    A class of the user's own keeps its name, also where it derives from one of Lightning's.
    """
    cls = type(trainer.strategy)
    return _STRATEGIES.get(cls, cls.__name__)


def _precision_name(trainer: pl.Trainer) -> str:
    """As scalewise names it: Lightning's ``32-true`` is tf32 where fp32 products may use it."""
    name, products = str(trainer.precision), torch.backends.cuda.matmul
    if name == "32-true" and trainer.strategy.root_device.type == "cuda":
        # Reading torch's older switch raises after the newer.
        newer = getattr(products, "fp32_precision", None)
        if products.allow_tf32 if newer is None else newer == "tf32":
            return "tf32"
    return _PRECISIONS.get(name, name)
