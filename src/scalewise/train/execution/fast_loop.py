"""Taking off Lightning's cost per step what our cells have no use for.

Each entry was found with a profiler on a step of 1 ms (``benchmarks/bare_loop.py`` measures
the sum). None changes what is computed, which hooks run, or in which order.
"""

from __future__ import annotations

import contextlib
import functools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loops.optimization.automatic import _AutomaticOptimization
from pytorch_lightning.plugins.precision.amp import MixedPrecision
from pytorch_lightning.profilers import Profiler

from scalewise.config import ConfigError
from scalewise.train.recording import STEP_HOOKS, CellRecorder, acts_in

_NOTHING = contextlib.nullcontext()


class NoProfiler(Profiler):
    """Hands out one empty context; Lightning's own builds a generator for 24 hooks a step."""

    def start(self, action_name: str) -> None:
        """Nothing is timed here: the step clock does that."""

    def stop(self, action_name: str) -> None:
        """See :meth:`start`."""

    def profile(self, action_name: str) -> Any:
        return _NOTHING


class CheapHookNames:
    """Mixin for a LightningModule, whose ``_current_fx_name`` Lightning sets 44 times a step.

    ``nn.Module.__setattr__`` looks each time whether that is a parameter, a buffer or a module.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_current_fx_name":
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)


class LeanSteps(_AutomaticOptimization):
    """Training steps without the layers that pass through hooks nobody has.

    For every batch Lightning calls some twenty hooks, and hands a closure through module, strategy,
    precision plugin and optimizer. A cell has the recorder, perhaps callbacks that look at the end
    of a step, and a module without those hooks: what is left is :meth:`advance` and :meth:`run`.
    """

    looking: Sequence[pl.Callback] = ()
    """Callbacks beside the recorder with a hook at the end of a step."""
    scheduled = False
    """Whether a schedule changes the learning rate."""

    def __init__(self, trainer: pl.Trainer, recorder: CellRecorder) -> None:
        super().__init__(trainer)
        self._recorder = recorder

    def advance(self, data_fetcher: Iterator[tuple[Any, int, int]]) -> None:
        """One batch, in place of the epoch loop's ``advance``."""
        trainer = self.trainer
        loop = trainer.fit_loop.epoch_loop
        progress = loop.batch_progress
        batch, _, _ = next(data_fetcher)
        batch_idx = loop.batch_idx + 1
        progress.is_last_batch = data_fetcher.done  # type: ignore[attr-defined]
        batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
        progress.increment_ready()
        progress.increment_started()
        output = self.step(batch, batch_idx)
        progress.increment_processed()
        if self.scheduled:
            loop.update_lr_schedulers("step", update_plateau_schedulers=False)
            if loop._num_ready_batches_reached():
                loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        module = trainer.lightning_module
        self._recorder.on_train_batch_end(trainer, module, output, batch, batch_idx)
        for callback in self.looking:
            callback.on_train_batch_end(trainer, module, output, batch, batch_idx)
        progress.increment_completed()

    def run(
        self, optimizer: torch.optim.Optimizer, batch_idx: int, kwargs: OrderedDict[str, Any]
    ) -> dict[str, Any]:
        """:meth:`step`, as Lightning's own epoch loop calls it."""
        return self.step(kwargs["batch"], batch_idx)

    def step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Forward, backward and optimizer step on one batch that is on the device."""
        trainer, recorder = self.trainer, self._recorder
        module, optimizer = trainer.lightning_module, trainer.optimizers[0]
        loss = trainer.strategy.training_step(batch, batch_idx)
        assert isinstance(loss, torch.Tensor)
        drop_gradients(optimizer)
        recorder.on_before_backward(trainer, module, loss)
        loss.backward()  # type: ignore[no-untyped-call]
        recorder.on_after_backward(trainer, module)
        self.optimize(module, optimizer)
        return {"loss": loss.detach()}

    def optimize(self, module: pl.LightningModule, optimizer: torch.optim.Optimizer) -> None:
        """One step of the optimizer with the gradients that are there."""
        self.optim_progress.optimizer.step.increment_ready()
        self._recorder.on_before_optimizer_step(self.trainer, module, optimizer)
        self.clip(module)
        optimizer.step()
        self.optim_progress.optimizer.step.increment_completed()

    def clip(self, module: pl.LightningModule) -> None:
        """Scale the gradients down to the norm the Trainer was given, if it was given one."""
        if self.trainer.gradient_clip_val is not None:
            limit = float(self.trainer.gradient_clip_val)
            torch.nn.utils.clip_grad_norm_(module.parameters(), limit)


def drop_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Do what ``zero_grad`` does, without the profiler's range that torch opens around it."""
    if type(optimizer).zero_grad is not torch.optim.Optimizer.zero_grad:
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def trim(
    trainer: pl.Trainer, recorder: CellRecorder, steps_class: type[LeanSteps] | None = None,
    callbacks: Sequence[pl.Callback] = (), scheduled: bool = False, own_data: bool = False,
) -> None:  # fmt: skip
    """Replace per-step work of the loop whose answer is known for our own modules.

    Gradient accumulation, loss scaling and callbacks of the user's that act in steps keep
    Lightning's own way, unless ``steps_class`` takes the steps. Raises ConfigError where a
    strategy's own steps would pass over ``callbacks``. With ``own_data`` no LightningDataModule has
    a hook around the copy of a batch.
    """
    loop: Any = trainer.fit_loop.epoch_loop
    if own_data:
        _copy_straight(trainer)
    if trainer.world_size > 1:
        # Lightning 2.6 broadcasts a "was there a SIGTERM" flag and waits for the device before
        # every batch. Our supervisor ends all ranks of a cell together, so nothing needs it, and
        # the wait would hide how far the host can run ahead of the device.
        loop._broadcast_sigterm_tensor = lambda: None
    scales = isinstance(trainer.precision_plugin, MixedPrecision) and (
        trainer.precision_plugin.scaler is not None
    )
    looking = [one for one in callbacks if acts_in(one, STEP_HOOKS)]
    acting = [type(one).__name__ for one in looking if type(one) is not ModelCheckpoint]
    # A strategy that divides the model may have steps of its own.
    own = getattr(trainer.strategy, "steps_class", None)
    if own and acting:
        raise ConfigError(
            f"callbacks: found {acting[0]}, which acts inside steps, where the strategy takes them "
            "its own way; allowed: strategy=single, ddp or fsdp"
        )
    if steps_class is None and trainer.accumulate_grad_batches == 1 and not (scales or acting):
        steps_class = own or LeanSteps
    if steps_class is not None:
        steps = steps_class(trainer, recorder)
        steps.looking, steps.scheduled = looking, scheduled
        loop.automatic_optimization = steps
        loop.advance = steps.advance
        if not scheduled:
            loop.update_lr_schedulers = lambda interval, update_plateau_schedulers: None
            if trainer.limit_val_batches == 0:
                loop.on_advance_end = functools.partial(_end_advance, loop)


def _copy_straight(trainer: pl.Trainer) -> None:
    """Lightning asks module and data module for three hooks around the copy of each batch."""
    strategy: Any = trainer.strategy

    def batch_to_device(
        batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        return trainer.lightning_module.transfer_batch_to_device(
            batch, device or strategy.root_device, dataloader_idx
        )

    strategy.batch_to_device = batch_to_device


def _end_advance(loop: Any, data_fetcher: object) -> None:
    """What is left of the end of a step where nothing is validated, scheduled or logged."""
    loop._batches_that_stepped += 1
