"""Several steps a batch, each replayed as one CUDA graph, inside Lightning's own epoch loop."""

from __future__ import annotations

import functools
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.trainer import call
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from scalewise.train.execution.cudagraph import (
    Batch,
    CapturedStep,
    CaptureError,
    CudaCapture,
    HostState,
    Marker,
    StepFunction,
    known_obstacle,
    make_capturable,
)
from scalewise.train.execution.fast_loop import LeanSteps
from scalewise.train.rank import gathered
from scalewise.train.recording import CellRecorder
from scalewise.train.torch_internals import bucket_bytes

NOT_SEEN_INSIDE = (
    "a replayed step is one launch, so the moments inside it are not seen: forward, backward, "
    "communication and optimizer are measured with execution=eager"
)
EagerStep = Callable[[], dict[str, Any]]
"""A training step with all its marks; gives what Lightning calls its output, the loss in it."""


class Preparation:
    """A few eager steps, then a captured one that all ranks agree on, or the reason for none.

    Args:
        trainer: of this rank.
        recorder: told what replays hide, and left out of the capture.
        eager_steps: steps before the capture.
        device: captures.
    """

    def __init__(
        self, trainer: pl.Trainer, recorder: CellRecorder, eager_steps: int, device: CudaCapture
    ) -> None:
        self.captured: CapturedStep | None = None
        self.fell_back_because: str | None = None
        self.seconds = 0.0
        self.steps = 0
        self._trainer = trainer
        self._recorder = recorder
        self._eager_steps = eager_steps
        self._device = device

    def begin(self) -> None:
        """Before the first step: the optimizer is made ready, and what is known is considered."""
        trainer = self._trainer
        reason = known_obstacle(trainer, trainer.lightning_module, self._device.kind)
        if reason is None:
            schedules = len(trainer.lr_scheduler_configs)
            reason = make_capturable(trainer.optimizers[0], schedules)
        self._agree(reason)

    @property
    def goes_on(self) -> bool:
        """Whether the next step is one of these."""
        return self.captured is None and self.fell_back_because is None

    def step(self, eager: EagerStep, whole: StepFunction, part: Batch) -> dict[str, Any]:
        """One more ``eager`` step; the last of them also captures ``whole`` on ``part``."""
        began = time.perf_counter()
        self.steps += 1
        if self.steps == self._eager_steps:
            output = self._watched(eager)
            self._count_gradients()
            if self.fell_back_because is None:
                self._capture(whole, part)
        else:
            output = eager()
        self.seconds += time.perf_counter() - began
        return output

    def _watched(self, eager: EagerStep) -> dict[str, Any]:
        """An eager step that shows whether it waits for the device or changes what Python keeps."""
        before = HostState(self._trainer.lightning_module, self._trainer.optimizers[0])
        output: dict[str, Any] = {}

        def step() -> Tensor:
            output.update(eager())
            loss: Tensor = output["loss"]
            return loss

        _, reason = self._device.watch(step)
        self._agree(reason or before.change())
        return output

    def _capture(self, whole: StepFunction, part: Batch) -> None:
        captured, reason = None, None
        try:
            with self._recorder.steps.unseen():
                captured = CapturedStep(whole, part, self._device.graph())
        except CaptureError as error:
            reason = f"the capture failed: {error}"
        self._agree(reason)
        if self.fell_back_because is None:
            self.captured = captured
            for name in ("phases", "arrival"):
                self._recorder.steps.missing[name] = NOT_SEEN_INSIDE

    def _agree(self, reason: str | None) -> None:
        """All ranks replay or none does: a graph holds its half of every all-reduce."""
        trainer = self._trainer
        reasons = gathered(reason, trainer.world_size)
        for rank, found in enumerate(reasons):
            if found is not None:
                where = f"on rank {rank}: " if any(r != found for r in reasons) else ""
                self._fall_back(where + found)
                return

    def _fall_back(self, reason: str) -> None:
        self.fell_back_because = reason
        if self._trainer.world_size > 1:
            self._recorder.steps.listen(self._trainer)
        if self._trainer.is_global_zero:
            pl.utilities.rank_zero_warn(
                f"execution=cudagraph: the steps run eagerly, because {reason}"
            )

    def _count_gradients(self) -> None:
        """Bytes and buckets that DDP reduces: no hook of ours listens inside a graph."""
        model, steps = self._trainer.strategy.model, self._recorder.steps
        if isinstance(model, DistributedDataParallel):
            buckets = bucket_bytes(model)
            if buckets:
                steps.traffic.bucket_bytes, steps.traffic.buckets = sum(buckets), len(buckets)


RUN_AHEAD_STEPS = 64
"""Steps the host may be ahead of the device. Enough to keep it busy; few enough that a device
that hangs stops the host, and with it the heartbeat, at once."""


class ReplayedSteps(LeanSteps):
    """Steps of a batch that holds several, eager first and replayed as soon as one is captured.

    Every step keeps what a step has: an optimizer step in ``global_step``, a row in the records,
    ``on_train_batch_end`` of every callback, a step of each schedule. A stop (``max_steps``,
    ``should_stop``) takes effect after the step that caused it, also amid a batch. Where nothing
    can be captured, the same loop goes on eagerly, and ``preparation`` says why.

    Args:
        trainer, recorder: as in :class:`LeanSteps`.
        steps_per_batch: steps whose samples a batch of the loader holds, one after the other.
        eager_steps: steps before the capture.
        device: captures; another one only in tests.
    """

    def __init__(
        self,
        trainer: pl.Trainer,
        recorder: CellRecorder,
        steps_per_batch: int,
        eager_steps: int,
        device: CudaCapture | None = None,
    ) -> None:
        super().__init__(trainer, recorder)
        self.steps_per_batch = steps_per_batch
        self._device = CudaCapture() if device is None else device
        self.preparation = Preparation(trainer, recorder, eager_steps, self._device)
        self._captured: CapturedStep | None = None
        self._ahead: deque[Marker] = deque()
        self._others: list[pl.Callback] = []
        self._samples_per_step = 0
        self._fed = 0
        """Steps taken of the batch that came last."""

    def advance(self, data_fetcher: Iterator[tuple[Any, int, int]]) -> None:
        """One batch of the loader: as many steps as it holds."""
        trainer = self.trainer
        progress = trainer.fit_loop.epoch_loop.batch_progress
        batch, _, _ = next(data_fetcher)
        batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
        if self._samples_per_step == 0:
            self._begin(batch)
        first = progress.current.ready * self.steps_per_batch
        progress.is_last_batch = False
        progress.increment_ready()
        progress.increment_started()
        steps = self._divide(batch)
        ends_epoch = bool(data_fetcher.done)  # type: ignore[attr-defined]
        if self._nobody_between(steps):
            self._replay(steps, ends_epoch)
        else:
            self._one_by_one(steps, first, ends_epoch)
        progress.is_last_batch = ends_epoch
        if ends_epoch and self._stops() and self._fed < len(steps):
            # The epoch was cut short, so nothing that belongs to its end is due.
            loop: Any = trainer.fit_loop.epoch_loop
            loop._should_check_val_fx = lambda _: False
        progress.increment_processed()
        self._wait_for_device()
        progress.increment_completed()

    def _nobody_between(self, steps: list[tuple[Tensor, ...]]) -> bool:
        """Whether all steps of a batch can be launched at a stretch."""
        return (
            self._captured is not None
            and all(self._captured.fits(part) for part in (steps[0], steps[-1]))
            and not self._others
            and not self.trainer.lr_scheduler_configs
            and not self._recorder.needs_every_step
        )

    def _replay(self, steps: list[tuple[Tensor, ...]], ends_epoch: bool) -> None:
        """As many of ``steps`` as ``max_steps`` leaves."""
        trainer, recorder = self.trainer, self._recorder
        captured = self._captured
        assert captured is not None
        whole = len(steps)
        if trainer.max_steps != -1:
            steps = steps[: trainer.max_steps - trainer.global_step]
        ends_epoch = ends_epoch and len(steps) == whole
        self._fed = len(steps)
        every, done, count = recorder.metrics.every_n_steps, recorder.steps.steps, len(steps)
        losses: dict[int, Tensor] = {}
        replays = recorder.steps.begin_replays()
        for number, part in enumerate(steps, start=1):
            loss = captured.run(part)
            if (done + number) % every == 0 or (ends_epoch and number == count):
                losses[count - number] = loss.clone()
            replays.tick()
        progress = self.optim_progress.optimizer.step
        for counted in (progress.total, progress.current):
            counted.ready += count
            counted.completed += count
        recorder.on_replays(trainer, replays, self._samples_per_step, losses)

    def _one_by_one(self, steps: list[tuple[Tensor, ...]], first: int, ends_epoch: bool) -> None:
        """Each of ``steps`` with everything that acts between two of them."""
        progress = self.trainer.fit_loop.epoch_loop.batch_progress
        for number, part in enumerate(steps):
            # What acts on the last batch of an epoch acts on the last step of it.
            progress.is_last_batch = ends_epoch and number == len(steps) - 1
            if number and self._captured is None:
                self._recorder.steps.on_next_of_batch()
            self._one(part, first + number)
            self._fed = number + 1
            if self._stops():
                break

    def _begin(self, batch: Batch) -> None:
        trainer = self.trainer
        self._others = [
            callback
            for callback in trainer.callbacks  # type: ignore[attr-defined]
            if callback is not self._recorder
            and is_overridden("on_train_batch_end", callback, parent=pl.Callback)
        ]
        self._samples_per_step = len(batch[0])
        if self.steps_per_batch > 1:
            loader = trainer.train_dataloader
            self._samples_per_step = loader.batch_sampler.per_rank  # type: ignore[union-attr]
        self.preparation.begin()

    def _divide(self, batch: Batch) -> list[tuple[Tensor, ...]]:
        if self.steps_per_batch == 1:
            return [tuple(batch)]
        parts = [torch.split(part, self._samples_per_step) for part in batch]
        return list(zip(*parts, strict=True))

    def _one(self, part: tuple[Tensor, ...], number: int) -> None:
        """One step on ``part``, the ``number``-th of the epoch, and what belongs to its end."""
        trainer, recorder = self.trainer, self._recorder
        if self._captured is not None and self._captured.fits(part):
            recorder.steps.on_replay()
            progress = self.optim_progress.optimizer.step
            progress.increment_ready()
            loss = self._captured.run(part)
            progress.increment_completed()
            if self._is_read(recorder.steps.steps + 1):
                loss = loss.clone()
            output: dict[str, Any] = {"loss": loss}
        elif self.preparation.goes_on:
            eager = functools.partial(self.step, part, number)
            output = self.preparation.step(eager, self._whole_step, part)
            self._captured = self.preparation.captured
        else:
            output = self.step(part, number)
        module = trainer.lightning_module
        recorder.on_train_batch_end(trainer, module, output, part, number)
        for callback in self._others:
            callback.on_train_batch_end(trainer, module, output, part, number)
        if trainer.lr_scheduler_configs:
            self._step_schedules(number)

    def _is_read(self, step: int) -> bool:
        """Whether anybody keeps the loss of this step beyond the next replay."""
        every = self._recorder.metrics.every_n_steps
        return step % every == 0 or self.trainer.is_last_batch or bool(self._others)

    def _step_schedules(self, number: int) -> None:
        for config in self.trainer.lr_scheduler_configs:
            due = config.interval == "step" and (number + 1) % config.frequency == 0
            if due and not config.reduce_on_plateau:
                call._call_lightning_module_hook(
                    self.trainer, "lr_scheduler_step", config.scheduler, None
                )

    def _stops(self) -> bool:
        trainer = self.trainer
        limit = trainer.max_steps
        return trainer.should_stop or (limit != -1 and trainer.global_step >= limit)

    def _wait_for_device(self) -> None:
        self._ahead.append(self._device.marker())
        if len(self._ahead) > math.ceil(RUN_AHEAD_STEPS / self.steps_per_batch):
            self._ahead.popleft().synchronize()

    def _whole_step(self, batch: Batch) -> Tensor:
        """Do what :meth:`LeanSteps.run` does, without a word to anybody."""
        trainer = self.trainer
        module, optimizer = trainer.lightning_module, trainer.optimizers[0]
        loss = trainer.strategy.training_step(tuple(batch), 0)
        assert isinstance(loss, Tensor)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.clip(module)
        optimizer.step()
        return loss
