"""Step times of one rank, phase by phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from scalewise.measure.step_clock import Mark, StepClock
from scalewise.records import WARMUP, CellFolder, StepWriter

CommHook = Callable[[Any, GradBucket], torch.futures.Future[Tensor]]


class StepTimer(pl.Callback):
    """Records every training step of this rank to ``steps/rank<r>.bin``.

    It has to come before other callbacks: what they take then counts as ``other``.

    Args:
        folder: where the records go.
        warmup_steps: first steps, flagged as excluded from every timing.
    """

    def __init__(self, folder: CellFolder, warmup_steps: int = 0) -> None:
        self.folder = folder
        self.warmup_steps = warmup_steps
        self.steps = 0
        self.samples = 0
        self.gradient_bytes: int | None = None
        self.gradient_buckets: int | None = None
        self.missing: dict[str, str] = {}
        self._clock: StepClock | None = None
        self._writer: StepWriter | None = None
        self._step_samples = 0
        self._bucket_bytes: list[int] = []

    @property
    def rows(self) -> int:
        return self._writer.rows if self._writer is not None else 0

    def drain(self, wait: bool) -> None:
        """Write the steps that are ready. Called from the recording thread."""
        if self._clock is not None:
            self._clock.drain(wait)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    # Lightning's hooks, in the order in which they come

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        strategy = trainer.strategy
        if stage == "fit" and isinstance(strategy, DDPStrategy):
            user_hook = strategy._ddp_comm_hook
            if user_hook is not None:
                # Registered by Lightning when it wraps the model; DDP takes one hook only.
                strategy._ddp_comm_hook = self._listening(user_hook)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        device = trainer.strategy.root_device
        self._writer = StepWriter(self.folder.steps_path(trainer.global_rank))
        self._clock = StepClock(self._writer, device if device.type == "cuda" else None)
        self._instrument(trainer)
        model = trainer.strategy.model
        if isinstance(model, DistributedDataParallel):
            if getattr(trainer.strategy, "_ddp_comm_hook", None) is None:
                model.register_comm_hook(None, self._listening(allreduce_hook))
        elif trainer.world_size > 1:
            self.missing["exposed_comm_ms"] = (
                f"{type(trainer.strategy).__name__} reduces gradients where no hook can see it"
            )
        self._clock.begin()

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor
    ) -> None:
        self._mark(Mark.BACKWARD_BEGIN)

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._mark(Mark.BACKWARD_END)

    def on_before_optimizer_step(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self._mark(Mark.OPTIMIZER_BEGIN)

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        assert self._clock is not None
        self._clock.mark(Mark.OPTIMIZER_END)
        self._step_samples += count_samples(batch)
        accumulate = trainer.accumulate_grad_batches
        if (batch_idx + 1) % accumulate and not trainer.is_last_batch:
            self._clock.continue_step()
            return
        flags = WARMUP if self.steps < self.warmup_steps else 0
        self._clock.finish_step(self.steps, trainer.current_epoch, self._step_samples, flags)
        self.steps += 1
        self.samples += self._step_samples
        self._step_samples = 0

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Scoring is no part of a training step: the next one begins after it.
        if self._clock is not None and not trainer.sanity_checking:
            self._clock.begin()

    def _mark(self, mark: Mark) -> None:
        assert self._clock is not None
        self._clock.mark(mark)

    def _instrument(self, trainer: pl.Trainer) -> None:
        """Mark what no hook tells: the loader, the transfer, and ``training_step`` itself."""
        loop, strategy = trainer.fit_loop.epoch_loop, trainer.strategy
        for owner, name, before, after in (
            (loop, "_on_before_fetch", Mark.FETCH_BEGIN, None),
            (loop, "_on_after_fetch", None, Mark.FETCH_END),
            (strategy, "batch_to_device", None, Mark.TRANSFER_END),
            (strategy, "training_step", Mark.FORWARD_BEGIN, Mark.FORWARD_END),
        ):
            inner = getattr(owner, name, None)
            if inner is None:
                self.missing[name] = f"this Lightning has no {type(owner).__name__}.{name}"
                continue
            setattr(owner, name, self._marking(inner, before, after))

    def _marking(
        self, inner: Callable[..., Any], before: Mark | None, after: Mark | None
    ) -> Callable[..., Any]:
        clock = self._clock
        assert clock is not None

        def marked(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                clock.mark(before)
            result = inner(*args, **kwargs)
            if after is not None:
                clock.mark(after)
            return result

        return marked

    def _listening(self, hook: CommHook) -> CommHook:
        """``hook``, and a mark when the last bucket of a backward pass is ready."""

        def listen(state: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
            if self.gradient_bytes is None:
                self._bucket_bytes.append(bucket.buffer().nbytes)
            if bucket.is_last():
                self._mark(Mark.LAST_BUCKET)
                # The first step reduces in one bucket order, later ones in another: the second
                # is what lasts, and by then the list holds both.
                if self.steps == 1 and self.gradient_bytes is None:
                    self.gradient_bytes = sum(self._bucket_bytes)
                    self.gradient_buckets = len(self._bucket_bytes)
                elif self.steps == 0:
                    self._bucket_bytes.clear()
            return hook(state, bucket)

        # DDP compares annotations with its own classes, and ours are strings here.
        listen.__annotations__.clear()
        return listen


def count_samples(batch: Any) -> int:
    """Samples in a batch: the length of its first tensor. 0 for a batch without any."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else 1
    if isinstance(batch, Mapping):
        return next((n for n in map(count_samples, batch.values()) if n), 0)
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return next((n for n in map(count_samples, batch) if n), 0)
    return 0
