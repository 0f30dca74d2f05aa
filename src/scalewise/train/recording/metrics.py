"""Losses, metrics and learning rate over steps, read late."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from scalewise.records import CellFolder, MetricRow, MetricsWriter, finite_or_none
from scalewise.train.recording.background import GiveWay, on_stream
from scalewise.train.recording.shards import OWN_SHARE, DataShare
from scalewise.train.recording.step_phases import is_past
from scalewise.train.recording.step_timer import StepTimer

if TYPE_CHECKING:
    import pytorch_lightning as pl

_OWN = frozenset({"train_loss", "learning_rate"})
_AT_ONCE = 32
"""Rows whose losses are read together."""
_LOGGED = "logged/"
"""Before the name of a user's metric that is called like one of the recorder's own."""


_Values = Mapping[str, float | Tensor | None]
_Pending = tuple[
    float, int, int, int, int | None, _Values, tuple[Tensor, ...], tuple[float, ...],
    torch.cuda.Event | None,
]  # fmt: skip
"""A row before its tensors are read: time, step, epoch, samples of all ranks, and of the step where
it has losses, values, losses of the step's batches, weights by which they add up to the step's
mean, and after what they can be read."""


class MetricsRecorder:
    """Records ``train_loss`` and ``learning_rate`` every few steps, and all logged metrics.

    The recording thread reads the loss, after its event: the training thread never waits for it.
    ``train_loss`` is this rank's own, of the samples that its row counts. What a user's module logs
    under one of these two names is ``logged/train_loss`` or ``logged/learning_rate``.
    """

    def __init__(
        self, folder: CellFolder, steps: StepTimer, every_n_steps: int = 10,
        data: DataShare = OWN_SHARE, loss_name: str = "train_loss",
    ) -> None:  # fmt: skip
        self.folder = folder
        self._data = data
        self.every_n_steps = every_n_steps
        self.final: dict[str, float | None] = {}
        self._steps = steps
        self._loss_name = loss_name
        self._pending: deque[_Pending] = deque()
        self._losses: list[tuple[Tensor, int]] = []
        """Losses of the step's batches so far, each with the samples it is the mean of."""
        self._writer: MetricsWriter | None = None
        self._side_stream: torch.cuda.Stream | None = None
        self._scheduled = False
        """Whether the learning rate changes, at the end of a step or epoch."""
        self._rate: dict[str, float | None] = {}  # of the step under way, where it changes
        self._told: dict[str, Tensor] = {}
        """What the user's module logged last, as Lightning keeps it."""

    @property
    def rows(self) -> int:
        return self._writer.rows if self._writer is not None else 0

    def drain(self, wait: bool, give_way: GiveWay | None = None) -> None:
        """Write the rows that are ready. Called from the recording thread."""
        while self._writer is not None and (ready := self._ready(wait)):
            losses = iter(self._read([loss for pending in ready for loss in pending[6]]))
            for time_s, step, epoch, samples, of_step, given, _, weights, _ in ready:
                values = {
                    name: self._read([value])[0] if isinstance(value, Tensor) else value
                    for name, value in given.items()
                }
                if weights:
                    values[self._loss_name] = sum(w * next(losses) for w in weights)
                self._writer.append(MetricRow(time_s, step, epoch, samples, values, of_step))
                self.final.update({name: finite_or_none(value) for name, value in values.items()})
                self._pending.popleft()
            if give_way is not None and self._pending:
                give_way()

    def _ready(self, wait: bool) -> list[_Pending]:
        """The first rows that the device is done with, at most so many as are read together."""
        # By number: the training thread appends meanwhile, under which an iterator would break.
        first = [self._pending[i] for i in range(min(len(self._pending), _AT_ONCE))]
        return list(itertools.takewhile(lambda pending: is_past(pending[-1], wait), first))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def open(self, rank: int, device: torch.device) -> None:
        if self._writer is None:
            self._writer = MetricsWriter(self.folder.metrics_path(rank))
            if device.type == "cuda":
                self._side_stream = torch.cuda.Stream(device)

    def begin(self, trainer: pl.Trainer) -> None:
        self._scheduled = bool(trainer.lr_scheduler_configs)

    def before_optimizer(self, trainer: pl.Trainer) -> None:
        """An optimizer is about to step: with the rate that the step has."""
        if self._scheduled:
            self._rate = _learning_rate(trainer)

    def end_batch(self, trainer: pl.Trainer, loss: Tensor | None) -> None:
        # Kept for every step: only its end shows whether it ends the epoch, and so has a row.
        if loss is not None:
            # Of a module that optimizes by itself it may still hold its graph.
            kept = loss.detach() if loss.requires_grad else loss
            self._losses.append((kept, self._steps.batch_samples))
        if self._steps.inside_step:
            return
        if self._steps.steps % self.every_n_steps == 0 or trainer.is_last_batch:
            losses = tuple(loss for loss, _ in self._losses)
            samples = [samples for _, samples in self._losses]
            weights = loss_weights(samples, trainer.accumulate_grad_batches)
            rate = dict(self._rate) if self._scheduled else _learning_rate(trainer)
            self.append(trainer.current_epoch, trainer.world_size, rate, losses, weights)
        self._losses.clear()

    def on_replays(self, trainer: pl.Trainer, losses: Mapping[int, Tensor]) -> None:
        """Losses of replayed steps, each by the number of steps still to come when it was due."""
        rate = _learning_rate(trainer)
        for steps_back, loss in losses.items():
            epoch, ranks = trainer.current_epoch, trainer.world_size
            self.append(epoch, ranks, dict(rate), (loss,), (1.0,), steps_back)

    def append_logged(self, trainer: pl.Trainer, epoch: int | None = None) -> None:
        """A row of what the user's module has logged in the loop that ends, if it has anything.

        In training that is of ``epoch``, which is over.
        """
        self.open(trainer.global_rank, trainer.strategy.root_device)
        found = _logged_now(trainer).items()
        # What was logged anew is a new object; of all else Lightning goes on to show the last.
        new = {name: value for name, value in found if value is not self._told.get(name)}
        self._told |= new
        values: dict[str, float | Tensor | None] = {
            logged_name(name): float(value) for name, value in new.items()
        }
        if values:
            now = trainer.current_epoch if epoch is None else epoch
            self.append(now, trainer.world_size, values)

    def append(
        self, epoch: int, world_size: int, values: _Values,
        losses: tuple[Tensor, ...] = (), weights: tuple[float, ...] = (), steps_back: int = 0,
    ) -> None:  # fmt: skip
        """A row of the last step, or of one so many ``steps_back``, with ``losses`` of it."""
        ready = None
        read = (*losses, *values.values())
        devices = [one.device for one in read if isinstance(one, Tensor) and one.is_cuda]
        if devices:
            # A loss is of before the end of its step; what a user logs may be of after it.
            if len(devices) == len(losses):
                ready = self._steps.clock.step_end(devices[-1])
            if ready is None:
                ready = torch.cuda.Event()
                ready.record(torch.cuda.current_stream(devices[-1]))
        step = self._steps.steps - steps_back
        own = self._steps.samples - steps_back * self._steps.samples_per_step
        samples = self._data.global_samples(own, world_size)
        of_step = (self._steps.samples_per_step or None) if losses else None
        self._pending.append(
            (time.time(), step, epoch, samples, of_step, values, losses, weights, ready)
        )

    def _read(self, scalars: Sequence[Tensor]) -> list[float]:
        """Their values, in one copy: the interpreter's lock is for the thread that trains."""
        if len({scalar.device for scalar in scalars}) != 1:  # none, or not of one kind
            return [float(scalar) for scalar in scalars]
        # On the training stream this copy would queue behind steps that are still to come.
        side = self._side_stream
        with contextlib.nullcontext() if side is None else on_stream(side):
            together = torch.stack([scalar.reshape(()) for scalar in scalars])
            return [float(value) for value in together.tolist()]


def _logged_now(trainer: pl.Trainer) -> dict[str, Tensor]:
    """What was logged in the loop that ends: Lightning gives the last values of others beside it.

    With validation in the middle, they would be those of an epoch ago.
    """
    results = trainer._results
    if results is None:
        return trainer.callback_metrics
    names = {one.meta.name for one in results.values()}
    ends = ("_step", "_epoch", "/dataloader_idx_")
    return {
        name: value
        for name, value in trainer.callback_metrics.items()
        if any(name == of or name.startswith(tuple(of + end for end in ends)) for of in names)
    }


@functools.cache
def logged_name(name: str) -> str:
    """Under which the metric ``name`` of the user's is recorded."""
    return _LOGGED + name if name in _OWN else name


def loss_weights(samples: Sequence[int], accumulate: int) -> tuple[float, ...]:
    """By what to multiply the losses of one step's batches for their sum to be the step's mean.

    Lightning has divided each by ``accumulate``, also where an epoch ends before a step has as
    many. A batch counts by its samples; all count alike where those of one are not known (0).
    """
    counts = samples if all(samples) else [1] * len(samples)
    return tuple(accumulate * count / sum(counts) for count in counts)


def _learning_rate(trainer: pl.Trainer) -> dict[str, float | None]:
    """The rate of the first optimizer's first group, as a metric; empty where there is none.

    A user's module may return no optimizer, in whose place Lightning puts one without groups.
    """
    groups = trainer.optimizers[0].param_groups if trainer.optimizers else []
    return {"learning_rate": float(groups[0]["lr"])} if groups and "lr" in groups[0] else {}
