"""Several steps a batch, each replayed as one CUDA graph, inside Lightning's own epoch loop."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from scalewise.train.execution.cudagraph import (
    Batch,
    CapturedStep,
    CaptureError,
    CudaCapture,
    host_state,
    make_capturable,
    state_change,
)
from scalewise.train.execution.fast_loop import LeanSteps
from scalewise.train.rank import gathered
from scalewise.train.recording import CellRecorder

NOT_SEEN_INSIDE = (
    "a replayed step is one launch, so the moments inside it are not seen: forward, backward, "
    "communication and optimizer are measured with execution=eager"
)
RUN_AHEAD_STEPS = 64
"""Steps the host may be ahead of the device. Enough to keep it busy; few enough that a device
that hangs stops the host, and with it the heartbeat, at once."""


class ReplayedSteps(LeanSteps):
    """Steps of a batch that holds several, eager first and replayed as soon as one is captured.

    Every step keeps what a step has: an optimizer step in ``global_step`` and a row in the
    records. ``max_steps`` may end training amid a batch. All ranks replay or none does: a graph
    holds its half of every all-reduce. Where nothing can be captured, the same loop goes on
    eagerly, and ``fell_back_because`` says why. Another ``device`` captures in tests only.
    """

    def __init__(
        self, trainer: pl.Trainer, recorder: CellRecorder, steps_per_batch: int, eager_steps: int,
        device: CudaCapture | None = None,
    ) -> None:  # fmt: skip
        super().__init__(trainer, recorder)
        self.steps_per_batch = steps_per_batch
        self.captured: CapturedStep | None = None
        self.fell_back_because: str | None = None
        self.prepared_steps = 0
        self._eager_steps = eager_steps
        self._device = CudaCapture() if device is None else device
        self._ahead: deque[torch.cuda.Event] = deque()
        self._samples_per_step = 0

    def advance(self, data_fetcher: Iterator[tuple[Any, int, int]]) -> None:
        """One batch of the loader: as many steps as it holds and ``max_steps`` leaves."""
        trainer = self.trainer
        loop: Any = trainer.fit_loop.epoch_loop
        progress = loop.batch_progress
        batch, _, _ = next(data_fetcher)
        batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
        if self._samples_per_step == 0:
            self._begin(batch)
        first = progress.current.ready * self.steps_per_batch
        progress.is_last_batch = False
        progress.increment_ready()
        progress.increment_started()
        held = self._divide(batch)
        steps = held
        if trainer.max_steps != -1:
            steps = held[: trainer.max_steps - trainer.global_step]
        is_last = bool(data_fetcher.done)  # type: ignore[attr-defined]
        ends_epoch = is_last and len(steps) == len(held)
        at_once = len(steps) if self._recorder.profiled is None else 1
        done = 0
        while done < len(steps):
            if done:
                self._recorder.steps.mark_no_fetch()
            # Of a batch only the last step may be a smaller one.
            ends = (steps[0], steps[-1])
            replays = self.captured is not None and all(map(self.captured.fits, ends))
            now = steps[done : done + (at_once if replays else 1)]
            # What acts on the last batch of an epoch acts on the last step of it.
            progress.is_last_batch = ends_epoch and done + len(now) == len(steps)
            if replays:
                self._replay(now)
            else:
                self._one(now[0], first + done)
            done += len(now)
        progress.is_last_batch = is_last
        if is_last and not ends_epoch:
            # The epoch was cut short, so nothing that belongs to its end is due.
            loop._should_check_val_fx = lambda _: False
        progress.increment_processed()
        self._ahead.append(self._device.marker())
        if len(self._ahead) > math.ceil(RUN_AHEAD_STEPS / self.steps_per_batch):
            self._ahead.popleft().synchronize()
        progress.increment_completed()

    def _begin(self, batch: Batch) -> None:
        self._samples_per_step = len(batch[0])
        if self.steps_per_batch > 1:
            loader = self.trainer.train_dataloader
            self._samples_per_step = loader.batch_sampler.samples_per_step  # type: ignore[union-attr]
        self._agree(make_capturable(self.trainer.optimizers[0]))

    def _divide(self, batch: Batch) -> list[tuple[Tensor, ...]]:
        if self.steps_per_batch == 1:
            return [tuple(batch)]
        parts = [torch.split(part, self._samples_per_step) for part in batch]
        return list(zip(*parts, strict=True))

    def _replay(self, steps: list[tuple[Tensor, ...]]) -> None:
        recorder, captured = self._recorder, self.captured
        assert captured is not None
        every, done, count = recorder.metrics.every_n_steps, recorder.steps.steps, len(steps)
        losses: dict[int, Tensor] = {}
        replays = recorder.steps.clock.begin_replays()
        for number, part in enumerate(steps, start=1):
            loss = captured.run(part)
            if (done + number) % every == 0 or (number == count and self.trainer.is_last_batch):
                losses[count - number] = loss.clone()
            replays.tick()
        progress = self.optim_progress.optimizer.step
        for counted in (progress.total, progress.current):
            counted.ready += count
            counted.completed += count
        recorder.on_replays(self.trainer, replays, self._samples_per_step, losses)

    def _one(self, part: tuple[Tensor, ...], number: int) -> None:
        """An eager step on ``part``, the ``number``-th of the epoch, and what is due at its end."""
        trainer = self.trainer
        prepares = self.captured is None and self.fell_back_because is None
        output = self._prepare(part, number) if prepares else self.step(part, number)
        self._recorder.on_train_batch_end(trainer, trainer.lightning_module, output, part, number)

    def _prepare(self, part: Batch, number: int) -> dict[str, Any]:
        """One more eager step; the last of them is followed by the capture."""
        self.prepared_steps += 1
        if self.prepared_steps < self._eager_steps:
            return self.step(part, number)
        output = self._watched_step(part, number)
        model = self.trainer.strategy.model
        if isinstance(model, DistributedDataParallel):  # no hook of ours listens inside a graph
            self._recorder.steps.gradients.size(model)
        if self.fell_back_because is None:
            self._capture(part)
        return output

    def _watched_step(self, part: Batch, number: int) -> dict[str, Any]:
        """An eager step that shows whether it waits for the device or changes what Python keeps."""
        holders = self.trainer.lightning_module, self.trainer.optimizers[0]
        before = host_state(*holders)
        output: dict[str, Any] = {}

        def step() -> Tensor:
            output.update(self.step(part, number))
            loss: Tensor = output["loss"]
            return loss

        _, reason = self._device.watch(step)
        self._agree(reason or state_change(before, host_state(*holders)))
        return output

    def _capture(self, part: Batch) -> None:
        captured, reason = None, None
        try:
            with self._recorder.steps.pause_marks():
                captured = CapturedStep(self._whole_step, part, self._device.graph())
        except CaptureError as error:
            reason = f"the capture failed: {error}"
        self._agree(reason)
        if self.fell_back_because is None:
            self.captured = captured
            for name in ("phases", "arrival"):
                self._recorder.steps.missing[name] = NOT_SEEN_INSIDE

    def _agree(self, reason: str | None) -> None:
        trainer = self.trainer
        reasons = gathered(reason, trainer.world_size)
        rank = next((rank for rank, found in enumerate(reasons) if found is not None), None)
        if rank is None:
            return
        where = f"on rank {rank}: " if len(set(reasons)) > 1 else ""
        self.fell_back_because = f"{where}{reasons[rank]}"
        if trainer.world_size > 1:
            self._recorder.steps.watch_gradients(trainer)
        if trainer.is_global_zero:
            pl.utilities.rank_zero_warn(
                f"execution=cudagraph: the steps run eagerly, because {self.fell_back_because}"
            )

    def _whole_step(self, batch: Batch) -> Tensor:
        """Do what :meth:`LeanSteps.step` does, without a word to anybody."""
        trainer = self.trainer
        module, optimizer = trainer.lightning_module, trainer.optimizers[0]
        loss = trainer.strategy.training_step(tuple(batch), 0)
        assert isinstance(loss, Tensor)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.clip(module)
        optimizer.step()
        return loss
