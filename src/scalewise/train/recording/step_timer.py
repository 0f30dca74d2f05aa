"""Step times of one rank, phase by phase."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from scalewise.config import DEFAULT_PROFILE, ProfileConfig
from scalewise.records import WARMUP, CellFolder, StepWriter
from scalewise.train.recording.gradient_communication import (
    GradientHook,
    GradientWatch,
    hidden_reductions,
)
from scalewise.train.recording.step_clock import NvtxClock, StepClock
from scalewise.train.recording.step_phases import Mark, Replays

if TYPE_CHECKING:
    import pytorch_lightning as pl


class StepTimer:
    """Records every training step of this rank to ``steps/rank<r>.bin``.

    The first ``warmup_steps`` are flagged as excluded from every timing; all are if a profiler
    runs.
    """

    clock: StepClock
    """There from :meth:`open` on, as is :attr:`mark`."""
    mark: Callable[[Mark], None]
    """Marks this moment of the step, if its phases are timed."""

    def __init__(
        self, folder: CellFolder, warmup_steps: int = 0, profile: ProfileConfig = DEFAULT_PROFILE
    ) -> None:
        self.folder = folder
        self.profile = profile
        self._profiles = profile.profiles
        self.warmup_steps = warmup_steps
        self.steps = 0
        self.samples = 0
        self.gradients = GradientWatch(lambda: self.mark(Mark.LAST_BUCKET))
        self.missing: dict[str, str] = {}
        """Reasons why something was not recorded, by its name."""
        self.steps_without_loss: int | None = None
        """Steps without a gradient; None if steps need no loss."""
        self.batch_shape: tuple[int, ...] | None = None  # of the first one's first tensor
        self.batch_samples = 0
        """Samples of the last batch; 0 if they could not be counted."""
        self.samples_per_step = 0  # of the last step
        self.watches_gradients = True
        self._writer: StepWriter | None = None
        self._step_samples = 0
        self._step_has_loss = False
        self.inside_step = False
        """Whether gradients of earlier batches wait for the optimizer step."""

    @property
    def rows(self) -> int:
        return self._writer.rows if self._writer is not None else 0

    @property
    def timed(self) -> tuple[int, float]:
        """Timed steps that are written by now, and their seconds on the host."""
        return self._writer.timed if self._writer is not None else (0, 0.0)

    @property
    def step_samples(self) -> tuple[int, int]:
        return self._writer.step_samples if self._writer is not None else (0, 0)

    def begin(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.open(trainer.global_rank, trainer.strategy.root_device)
        if self.profile.anatomy:
            _mark_loop(trainer, self.clock, module.automatic_optimization)
        else:
            self.missing["phases"] = "profile.anatomy=false: only whole steps were timed"
        if self.watches_gradients:
            self.watch_gradients(trainer)
        # A module with manual optimization needs no loss; a forward pass alone has no optimizer.
        if module.automatic_optimization and trainer.optimizers:
            self.steps_without_loss = 0
        self.clock.begin()

    def open(self, rank: int, device: torch.device) -> None:
        """Make the file of rank ``rank``, and a clock for ``device``, which is yet to begin."""
        self._writer = StepWriter(self.folder.steps_path(rank))
        clock = NvtxClock if self.profile.nvtx else StepClock
        timed = device if device.type == "cuda" else None
        self.clock = clock(self._writer, timed, self.profile.anatomy, self.warmup_steps)
        self.mark = self.clock.mark

    def watch_gradients(self, trainer: pl.Trainer) -> None:
        """Watch DDP's gradient buckets, or note in :attr:`missing` why that is not possible."""
        model = trainer.strategy.model
        if not isinstance(model, DistributedDataParallel):
            self.missing.update(hidden_reductions(trainer))
            return
        hook: GradientHook | None = getattr(trainer.strategy, "gradient_hook", None)
        if self.profile.anatomy:
            self.gradients.watch(model, hook)
        elif hook is not None:
            model.register_comm_hook(hook.state, hook.hook)

    def end_batch(self, trainer: pl.Trainer, has_loss: bool, batch: Any, batch_idx: int) -> None:
        """End a batch, and its step unless more batches are accumulated."""
        self.mark(Mark.OPTIMIZER_END)
        self.batch_samples = count_samples(batch)
        if self.batch_shape is None:
            self.batch_shape = first_shape(batch)
        self._step_samples += self.batch_samples
        self._step_has_loss |= has_loss
        accumulate = trainer.accumulate_grad_batches
        self.inside_step = (batch_idx + 1) % accumulate != 0 and not trainer.is_last_batch
        if self.inside_step:
            self.clock.continue_step()
            return
        self.end_step(trainer.current_epoch)
        if self.steps_without_loss is not None and not self._step_has_loss:
            self.steps_without_loss += 1
        self._step_has_loss = False

    def end_step(self, epoch: int, samples: int | None = None, untimed: bool = False) -> None:
        """End the step at its last mark, ``OPTIMIZER_END``.

        ``samples`` were fed in it; None for those of its batches. ``untimed`` excludes it from
        every timing.
        """
        if samples is None:
            samples, self._step_samples = self._step_samples, 0
        steps = self.steps
        untimed |= steps < self.warmup_steps or self._profiles
        self.clock.finish_step(steps, epoch, samples, WARMUP if untimed else 0)
        self.steps = steps = steps + 1
        self.samples += samples
        self.samples_per_step = samples
        if steps == self.warmup_steps:
            self.gradients.begin()

    def mark_no_fetch(self) -> None:
        """Mark an empty fetch: the step's data came with the batch before."""
        for mark in (Mark.FETCH_BEGIN, Mark.FETCH_END, Mark.TRANSFER_END):
            self.mark(mark)

    def finish_replays(self, replays: Replays, epoch: int, samples: int) -> None:
        count = replays.steps
        untimed = min(count, max(0, self.warmup_steps - self.steps))
        flagged = count if self._profiles else untimed
        self.clock.finish_replays(replays, self.steps, epoch, samples, flagged)
        if 0 <= self.warmup_steps - self.steps <= count:
            self.gradients.begin()
        self.gradients.repeat(count - untimed)
        self.steps += count
        self.samples += count * samples
        self.samples_per_step = samples

    def begin_part(self, begin: Mark) -> None:
        """Begin one of several alternating forward or backward parts; the gap is ``other``."""
        self.clock.continue_step()
        # On the device's timeline this mark ends the gap between two parts.
        self.clock.mark(Mark.FETCH_BEGIN)
        self.clock.mark(begin)

    def end_parts(self) -> None:
        """End the last part before the optimizer; the time since then is ``other``."""
        self.clock.continue_step()
        self.clock.mark(Mark.FETCH_BEGIN)

    @contextlib.contextmanager
    def pause_marks(self) -> Iterator[None]:
        """Take no marks inside: a capture runs no step."""
        self.clock.paused = True
        try:
            yield
        finally:
            self.clock.paused = False

    def end_validation(self) -> None:
        """Begin or resume a step after validation, whose time is not counted."""
        if self._writer is None:  # no fit has begun
            return
        if self.inside_step:
            self.clock.resume_step()
        else:
            self.clock.begin()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def loss_of(outputs: Any) -> Tensor | None:
    """The loss of a batch; None if ``training_step`` returned none.

    With manual optimization it may return anything: only a tensor of one real number is a loss.
    """
    # A plain dict is asked for first: what is abstract takes a while to ask for.
    is_mapping = type(outputs) is dict or isinstance(outputs, Mapping)
    loss = outputs.get("loss") if is_mapping else outputs
    if not isinstance(loss, Tensor) or loss.numel() != 1 or loss.is_complex():
        return None
    return loss


def count_samples(batch: Any) -> int:
    """Samples in a batch: the length of its first tensor. 0 for a batch without any."""
    # Mostly a pair of tensors, and asked each step: to look for the first takes 20 times longer.
    first = batch[0] if type(batch) in (tuple, list) and batch else batch
    shape: tuple[int, ...] | None = first.shape if isinstance(first, Tensor) else None
    if shape and shape[0]:
        return shape[0]
    shape = first_shape(batch)
    if shape is None:
        return 0
    return shape[0] if shape else 1


def first_shape(batch: Any) -> tuple[int, ...] | None:
    """Shape of the first tensor in a batch that is not empty; None without any."""
    if isinstance(batch, Tensor):
        shape = tuple(batch.shape)  # a tensor's len() is Python of torch's, and this is each step
        return shape if shape[:1] != (0,) else None
    parts: Any = ()
    if type(batch) in (tuple, list):  # asked first: what is abstract takes a while to ask for
        parts = batch
    elif isinstance(batch, Mapping):
        parts = batch.values()
    elif isinstance(batch, Sequence) and not isinstance(batch, str):
        parts = batch
    for part in parts:
        if (found := first_shape(part)) is not None:
            return found
    return None


def _mark_loop(trainer: pl.Trainer, clock: StepClock, automatic: bool) -> None:
    """Mark the loader, the transfer and ``training_step``, for which Lightning has no hooks.

    The methods are wrapped on the objects of one fit, not on Lightning's classes. A
    ``training_step`` is more than forward unless optimization is ``automatic``.
    """
    loop, strategy = trainer.fit_loop.epoch_loop, trainer.strategy
    mark = functools.partial(functools.partial, clock.mark)
    end_forward = mark(Mark.FORWARD_END) if automatic else clock.end_forward
    for owner, name, before, after in (
        (loop, "_on_before_fetch", mark(Mark.FETCH_BEGIN), None),
        (loop, "_on_after_fetch", None, mark(Mark.FETCH_END)),
        (strategy, "batch_to_device", None, mark(Mark.TRANSFER_END)),
        (strategy, "training_step", clock.begin_forward, end_forward),
        *([] if automatic else [(strategy, "optimizer_step", None, mark(Mark.OPTIMIZER_END))]),
    ):
        setattr(owner, name, _marking(getattr(owner, name), clock, before, after))


def _marking(
    inner: Callable[..., Any],
    clock: StepClock,
    before: Callable[[], None] | None,
    after: Callable[[], None] | None,
) -> Callable[..., Any]:
    @functools.wraps(inner)
    def marked(*args: Any, **kwargs: Any) -> Any:
        if not clock.divides:
            return inner(*args, **kwargs)
        if before is not None:
            before()
        result = inner(*args, **kwargs)
        if after is not None:
            after()
        return result

    return marked
