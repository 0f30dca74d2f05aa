"""The loss of a script, which is what it calls ``backward`` on."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from scalewise.train.recording import MetricsRecorder, StepTimer, loss_of


class Losses:
    """A copy of what the batches of every tenth step or so are trained on, added up.

    The recording thread reads it: training never waits. A factor of a GradScaler's is taken off;
    others that a script multiplies by are not known.

    Args:
        steps: which step it is.
        metrics: writes the rows; open.
    """

    def __init__(self, steps: StepTimer, metrics: MetricsRecorder, world_size: int) -> None:
        self._steps, self._metrics, self._world_size = steps, metrics, world_size
        self._of_step: list[Tensor] = []
        self._scaled: tuple[weakref.ref[Tensor], Tensor] | None = None
        """What a GradScaler gave, and what it was given."""
        self.is_due = metrics.every_n_steps == 1  # whether the present step's is kept

    def scale(self, given: Any, scaled: Any) -> None:
        """A GradScaler has multiplied ``given``."""
        if self.is_due and isinstance(given, Tensor):
            self._scaled = weakref.ref(scaled), given.detach()

    def begin_backward(self, tensors: Any) -> None:
        """``backward`` is called on ``tensors``; what is no single number is no loss."""
        if not self.is_due:
            return
        if isinstance(tensors, (tuple, list)) and len(tensors) == 1:
            tensors = tensors[0]
        loss = loss_of(tensors)
        if loss is None or (loss.is_cuda and torch.cuda.is_current_stream_capturing()):
            return
        if self._scaled is not None and self._scaled[0]() is loss:
            loss = self._scaled[1]
        # Its own part: to read the whole of a distributed one, ranks would talk at any moment.
        if hasattr(loss, "to_local"):
            loss = loss.to_local()
        # A copy: of a compiled step, the next one may lie in the same place.
        self._of_step.append(loss.detach().clone())

    def end_step(self) -> None:
        """A step was ended."""
        if self._of_step:
            losses = tuple(self._of_step)
            self._metrics.append(0, self._world_size, {}, losses, (1.0,) * len(losses))
            self._of_step.clear()
        self.is_due = (self._steps.steps + 1) % self._metrics.every_n_steps == 0
