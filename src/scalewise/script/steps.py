"""Where one step of a script ends and the next begins, told by what it does; and its loss.

A step ends with the last optimizer step before the next batch is fetched or the next forward
begins. Several optimizers (a GAN's two, one a parameter) share a step: the one that stepped first
ends it. Batches whose gradients are accumulated belong to one step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scalewise.train.recording import Mark, MetricsRecorder, StepTimer, loss_of

# Looked up once: Python 3.11 takes 0.1 us to find a member of an enumeration.
_FETCH_BEGIN, _FETCH_END = Mark.FETCH_BEGIN, Mark.FETCH_END
_FORWARD_BEGIN, _FORWARD_END = Mark.FORWARD_BEGIN, Mark.FORWARD_END
_BACKWARD_BEGIN, _BACKWARD_END = Mark.BACKWARD_BEGIN, Mark.BACKWARD_END
_OPTIMIZER_BEGIN, _OPTIMIZER_END = Mark.OPTIMIZER_BEGIN, Mark.OPTIMIZER_END

_RETIRED_AFTER = 100
"""Steps of other optimizers without one of the first: its part of the training is over."""


class ScriptSteps:
    """Turns moments of a script into marks and steps of a timer.

    Marks of one batch come in their order. One that does not begins another batch of the same
    step, and what lies between two batches is ``other``. On the thread that trains ``on_step`` is
    called at the end of each step, and ``on_optimizer`` with one that has made a whole step: its
    first, one before which nothing was seen, and any where :attr:`tells_all`.
    """

    def __init__(
        self, timer: StepTimer, on_step: Callable[[], None], on_optimizer: Callable[[Any], None]
    ) -> None:
        self._timer = timer
        self._take = timer.mark
        self._on_step, self._on_optimizer = on_step, on_optimizer
        self.tells_all = self.alone = False
        self.optimizers: dict[int, Any] = {}  # those that stepped, by ``id``
        self._last: Mark | None = None  # of the present batch
        self._leader: int | None = None  # whose steps end a step, by ``id``
        self._others = 0
        self._optimizing = self._backward = 0
        """Calls within one another: ``super().step()`` is no step of its own."""
        self.is_due = False
        """Whether the present step ends with the next fetch or forward."""
        self.unseen = 0
        """Steps in a row between which nothing was fetched and no model was run."""
        self.uncounted = 0
        """Steps of which nothing told the samples."""
        self._fed: dict[int, int] = {}
        """Samples that each model was given in this step."""
        self._fetched = 0
        """Samples that loaders gave in this step, to train on."""
        self._batch = 0
        """Those of the last one until it is trained on; below 0, and not counted, once scored."""
        self._unlike = 0
        """Steps whose models were given another number than loaders gave, less those alike."""
        self._last_unlike: tuple[int, int] | None = None
        self._counts_fetched = True
        """Whether the models of the step before were given nothing that could be counted."""
        self._scored = False
        """Whether a model was run in this step without being trained."""
        self.divides = True
        """Whether the phases of the present step are marked, in which backward is watched."""

    @property
    def fed_unlike_fetched(self) -> tuple[int, int] | None:
        """Samples that models were given, and others that loaders gave, of most steps.

        A loader that fetches ahead gives two batches for the first step and none for the last.
        """
        return self._last_unlike if self._unlike > 0 else None

    def begin_fetch(self) -> bool:
        """Whether :meth:`end_fetch` is to be called."""
        if self.is_due:
            self.end_due_step()
        if not (self.divides or self._counts_fetched):
            return False
        self._mark(_FETCH_BEGIN)
        return True

    def end_fetch(self, samples: int) -> None:
        if self._last == _FETCH_BEGIN:
            self._mark(_FETCH_END)
        self._fetched += samples
        self._batch = samples

    def begin_forward(self, model: int, samples: int, scores: bool = False) -> None:
        """``samples`` of this model count if it is trained on them; one that ``scores`` is not."""
        if self.is_due:
            self.end_due_step()
        if scores:
            self._scored = True
            if self._batch > 0:
                self._fetched -= self._batch
                self._batch = -self._batch
        if scores or self.alone:  # where a compiled function falls back, each step counts as before
            return
        before = self._fed.get(model, 0)
        # A closure may ask for the same batch again and again, as that of LBFGS does.
        self._fed[model] = max(before, samples) if self._optimizing else before + samples
        if self._batch:
            self._fetched -= min(self._batch, 0)
            self._batch = 0
        if self.divides and self._last != _FORWARD_BEGIN:
            self._mark(_FORWARD_BEGIN)

    def begin_backward(self) -> None:
        """The loss counts as forward, as it does in a ``training_step`` of Lightning's."""
        self._backward += 1
        if self._backward == 1:
            if self._last == _FORWARD_BEGIN:
                self._mark(_FORWARD_END)
            self._mark(_BACKWARD_BEGIN)

    def end_backward(self) -> None:
        self._backward -= 1
        if self._backward:
            return
        if self._last == _BACKWARD_BEGIN:  # else an optimizer stepped meanwhile
            self._last = _BACKWARD_END
            self._take(_BACKWARD_END)
            if self._optimizing:  # which goes on when its closure returns
                self._mark(_OPTIMIZER_BEGIN)
        self._timer.gradients.after_backward()

    def begin_optimizer(self, *_: object) -> None:
        self._optimizing += 1
        # A second one straight after the first goes on with its phase.
        if self.divides and self._optimizing == 1 and self._last != _OPTIMIZER_END:
            self._mark(_OPTIMIZER_BEGIN)

    def end_optimizer(self, optimizer: Any, *_: object) -> None:
        self._optimizing -= 1
        if self._optimizing:
            if self._optimizing < 0:  # it began before anybody watched
                self._optimizing = 0
            elif self._leader in (None, id(optimizer)) and not self.is_due:
                # Should a forward come before the outer one ends, then that was given up.
                self.is_due, self.unseen = True, -1
            return
        self._take(_OPTIMIZER_END)
        self._last, who = _OPTIMIZER_END, id(optimizer)
        if who == self._leader and not (self.is_due or self.unseen or self.tells_all):
            self._others, self.is_due = 0, True  # as mostly
            return
        if who != self._leader:
            self._others += 1
            if self._leader is None or self._others > _RETIRED_AFTER:
                self._leader = who
        if who == self._leader:
            self.unseen += self.is_due
            self._others, self.is_due = 0, True
        if self.unseen or self.tells_all or who not in self.optimizers:
            self._on_optimizer(optimizer)
            self.optimizers[who] = optimizer
        if self.alone and self.is_due:
            self.end_due_step()

    def go_alone(self) -> None:
        """From the present moment on a step ends with the optimizer that leads: nothing else is
        seen of it."""
        self.alone = self.tells_all = True
        self.is_due, self.unseen, self._last = False, 0, None
        self._timer.clock.begin()

    def end_due_step(self) -> None:
        """End the step, which is due."""
        if self.unseen < 0:
            self._optimizing = 0
        self.is_due, self.unseen = False, 0
        if self._last != _OPTIMIZER_END:
            self._take(_OPTIMIZER_END)  # its moment is the end of the step
        samples = fed = min(filter(None, self._fed.values()), default=0)
        untimed = self._scored
        if not fed:
            samples = self._fetched
            self.uncounted += not samples
            # The first one whose models are not fed any more: nobody counted what was fetched for
            # it, and another one may be run instead.
            if not self._counts_fetched:
                untimed, self.unseen = True, 1
        elif self._fetched:
            self._unlike += 1 if fed != self._fetched else -1
            if fed != self._fetched:
                self._last_unlike = fed, self._fetched
        self._timer.end_step(0, samples, untimed)
        if self.alone:
            self._timer.samples += 1  # over which its losses are drawn
        self._last, self._scored = None, False
        self._fetched = self._batch = 0
        self._counts_fetched, self.divides = not fed, self._timer.clock.divides
        self._fed.clear()
        self._on_step()

    def _mark(self, mark: Mark) -> None:
        if not self.divides:
            self._last = mark
            return
        if self._last is not None and mark <= self._last:
            if self._last == _FORWARD_BEGIN:
                self._take(_FORWARD_END)
            if self._last == _OPTIMIZER_BEGIN:
                self._take(_OPTIMIZER_END)
            if mark == _FETCH_BEGIN:
                self._timer.end_parts()
            else:
                self._timer.begin_part(mark)
        else:
            self._take(mark)
        self._last = mark


class Losses:
    """A copy of what the batches of every tenth step or so are trained on, added up.

    The recording thread reads it: training never waits. A factor of a GradScaler's is taken off;
    others that a script multiplies by are not known.
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
