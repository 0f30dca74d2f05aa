"""When each phase of each step began and ended, on the host and on the device.

Marking costs a clock reading and, on a GPU, a CUDA event recorded into the stream; nothing waits
for the device. The events are read by another thread long after the step, when they have all
completed, and go back into a pool.

A step lasts from the end of the optimizer step before it to the end of its own, so the phases of
a step add up to it on the host. On the device the same marks cut the stream's time line.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from scalewise.records import StepWriter
from scalewise.train.recording.step_phases import (
    DEVICE_MARKS,
    PHASES_FROM_TO,
    Mark,
    MarkedBatch,
    MarkedStep,
    Replays,
    is_past,
    replay_rows,
    step_rows,
)

_CUTS = tuple(mark in DEVICE_MARKS for mark in Mark)
"""Looked up by number: asking a tuple for a member is slower than reading the clock, and this
happens ten times a step."""
_CUTS_NOTHING = (False,) * len(Mark)
_END = Mark.OPTIMIZER_END  # Python 3.11 takes 0.1 us to find a member of an enumeration
_AT_ONCE = 64
"""Rows that are made together, or a few more: one by one, each would cost several times as much."""


_GAPS = 997
ALL_DIVIDED = 256
DIVIDED_EVERY = 8
"""Of so many first timed steps all are divided into phases, of those after them one in so many. Its
marks cost a step of 1.6 ms on an H100 5 %, and in a few hundred steps a mean is known as well as in
all. Which ones is drawn: what comes every eighth step, as the batches of a loader with eight
workers do, would be in each of them or in none. Every rank draws the same."""


class StepClock:
    """Takes marks on the training thread; ``drain`` turns finished steps into records elsewhere.

    Without ``anatomy`` no phases are marked, and a step is known as a whole only.
    The first ``untimed`` steps are warm-up.
    """

    divides_all = False
    """Whether every step is divided, however many there are."""

    def __init__(
        self,
        writer: StepWriter,
        device: torch.device | None,
        anatomy: bool = True,
        untimed: int = 0,
    ) -> None:
        self._anatomy = anatomy
        self._writer = writer
        self._device = device
        # Asked for once: looking up the current stream costs more than recording into it.
        self._stream = None if device is None else torch.cuda.current_stream(device)
        self._cuts = _CUTS_NOTHING if device is None else _CUTS
        self._pool: deque[torch.cuda.Event] = deque()
        self._finished: deque[MarkedStep | Replays | tuple[Any, ...]] = deque()
        """Of a step of which the end alone is known what :func:`whole_step` takes."""
        self._batch = MarkedBatch()
        self._batches: list[MarkedBatch] = [self._batch]
        self._start_ns = 0
        self._start_event: torch.cuda.Event | None = None
        self._taken = 0
        self._all_until = untimed + ALL_DIVIDED
        self._drawn = self._all_until  # the next step to be divided once not all are
        gaps = random.Random(0).choices(range(1, 2 * DIVIDED_EVERY), k=_GAPS)
        self._gaps = itertools.cycle(gaps)  # drawn before: drawing takes longer than the clock
        self.divides = anatomy
        """Whether the phases of the step under way are marked."""
        self._ends_alone = False
        """Whether of the step under way nothing but its end is marked."""
        self.paused = False

    def step_end(self, device: torch.device) -> torch.cuda.Event | None:
        """When ``device`` was done with the last step; None where that was not marked.

        It may be recorded anew, for a later step, once it is over.
        """
        return self._start_event if device == self._device else None

    def begin(self) -> None:
        """The next step starts now: at the start of training, and after an interruption."""
        self._start_ns = time.perf_counter_ns()
        self._start_event = self._record()
        self._batch = MarkedBatch()
        self._batches = [self._batch]

    def mark(self, mark: Mark) -> None:
        if self.paused or not (self.divides or mark is _END):
            return
        batch = self._batch
        batch.host_ns[mark] = time.perf_counter_ns()
        if self._cuts[mark]:
            batch.events[mark] = self._record()

    def begin_forward(self) -> None:
        """A closure that is called again for its batch, as LBFGS does, begins another part."""
        if self._batch.host_ns[Mark.OPTIMIZER_BEGIN]:
            self.mark(Mark.OPTIMIZER_END)
            self.continue_step()
        self.mark(Mark.FORWARD_BEGIN)

    def begin_backward(self, manual: bool) -> None:
        """Of ``manual`` optimization no other mark ends forward. What follows an earlier backward
        or optimizer step of its batch is a forward of its own.
        """
        if manual:
            ends_ns = self._batch.host_ns
            if before_ns := ends_ns[_END] or ends_ns[Mark.BACKWARD_END]:
                self.continue_step()
                self._batch.host_ns[Mark.FORWARD_BEGIN] = before_ns
            self.mark(Mark.FORWARD_END)
        self.mark(Mark.BACKWARD_BEGIN)

    def end_forward(self) -> None:
        """Of a manually optimized batch of which no backward told: its forward is over."""
        if not self._batch.host_ns[Mark.FORWARD_END]:
            self.mark(Mark.FORWARD_END)

    def begin_optimizer(self, manual: bool) -> None:
        """A second optimizer straight after the first goes on with its phase."""
        if manual:
            self.end_forward()
        if not (manual and self._batch.host_ns[Mark.OPTIMIZER_BEGIN]):
            self.mark(Mark.OPTIMIZER_BEGIN)

    def continue_step(self) -> None:
        """Another batch follows before the optimizer steps (gradient accumulation)."""
        self._ends_alone = False
        self._batch = MarkedBatch()
        self._batches.append(self._batch)

    def resume_step(self) -> None:
        """Leave out of a step that goes on the time since its batch before.

        On the host its batches so far move up to now, and its start with them, so that its phases
        still add up to it. On the device the gap is taken off when the events are read.
        """
        gap_ns = time.perf_counter_ns() - self._batches[-2].host_ns[Mark.OPTIMIZER_END]
        self._start_ns += gap_ns
        for batch in self._batches[:-1]:
            batch.host_ns = [moment and moment + gap_ns for moment in batch.host_ns]
        self._batch.resumed = self._record()

    def finish_step(self, number: int, epoch: int, samples: int, flags: int) -> None:
        """The optimizer has stepped; the last mark of this step is the start of the next."""
        start_ns, start_event, last = self._start_ns, self._start_event, self._batch
        self._start_ns = end_ns = last.host_ns[_END]
        self._start_event = end_event = last.events[_END]
        self._taken = taken = self._taken + 1
        if self._ends_alone:  # the rest is left to the recording thread
            whole = number, epoch, samples, flags, start_ns, start_event, end_ns, end_event
            self._finished.append(whole)
            if taken != self._drawn:
                return  # the next one marks its end in the same place
        else:
            begin = start_ns, start_event, self._batches, self.divides
            self._finished.append(MarkedStep(number, epoch, samples, flags, *begin))
        self._batch = MarkedBatch()
        self._batches = [self._batch]
        if taken == self._drawn:
            self.divides = self._anatomy
            self._drawn += next(self._gaps)
        elif taken > self._all_until:
            self.divides = self._anatomy and self.divides_all
        self._ends_alone = not self.divides

    def begin_replays(self) -> Replays:
        """Steps on the batch that was just marked are about to be replayed one after the other."""
        begin = self._start_ns, self._start_event, self._batches, self.divides
        return Replays(MarkedStep(0, 0, 0, 0, *begin), self._record)

    def finish_replays(
        self, replays: Replays, number: int, epoch: int, samples: int, untimed: int
    ) -> None:
        """The last of them has been launched; its end is the start of the next step.

        ``number`` is the first one's; ``samples`` were fed in each; the first ``untimed`` are
        flagged as warm-up.
        """
        first = replays.first
        first.number, first.epoch, first.samples = number, epoch, samples
        replays.untimed = untimed
        self._batch.host_ns[Mark.REPLAY_BEGIN] = self._batch.host_ns[Mark.TRANSFER_END]
        self._batch.host_ns[Mark.OPTIMIZER_END] = replays.ends_ns[0]
        if replays.ends:
            self._batch.events[Mark.OPTIMIZER_END] = replays.ends[0]
        self._finished.append(replays)
        self._start_ns, self._start_event = replays.ends_ns[-1], replays.end
        self._batch = MarkedBatch()
        self._batches = [self._batch]

    def drain(self, wait: bool = False, give_way: Callable[[], None] | None = None) -> None:
        """Write every finished step whose events have completed. Not for the training thread.

        With ``wait`` the device is waited for: at the end of training only. ``give_way`` is called
        between two pieces of the work, each of which keeps the interpreter from training.
        """
        while ready := self._ready(wait):
            self._writer.append_rows(self._rows(ready))
            for step in ready:
                self._pool.extend(step.spent_events())
                self._finished.popleft()
            if give_way is not None and self._finished:
                give_way()
        self._writer.flush()

    def _ready(self, wait: bool) -> list[MarkedStep | Replays]:
        """The first finished ones that the device has done and whose rows are made together."""
        alike: list[MarkedStep | Replays] = []
        rows, kind = 0, None
        # By number: the training thread appends meanwhile, under which an iterator would break.
        for i in range(len(self._finished)):
            step = self._finished[i]
            if isinstance(step, tuple):
                step = self._finished[i] = whole_step(*step)
            kind = kind or (type(step), len(step.batches))
            if rows >= _AT_ONCE or kind != (type(step), len(step.batches)):
                break
            alike.append(step)
            rows += step.steps
        # They end in their order: mostly all are over, and then one question is enough.
        if alike and is_past(alike[-1].end, wait):
            return alike
        return list(itertools.takewhile(lambda step: is_past(step.end, wait), alike))

    def _rows(self, ready: Sequence[MarkedStep | Replays]) -> npt.NDArray[np.void]:
        on_device = self._device is not None
        replays = [one for one in ready if isinstance(one, Replays)]
        if replays:
            return replay_rows(replays, on_device)
        return step_rows([one for one in ready if isinstance(one, MarkedStep)], on_device)

    def _record(self) -> torch.cuda.Event | None:
        if self._device is None:
            return None
        try:
            event = self._pool.popleft()
        except IndexError:
            event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event


def whole_step(
    number: int, epoch: int, samples: int, flags: int, start_ns: int, start: Any, end_ns: int,
    end: Any,
) -> MarkedStep:  # fmt: skip
    """A step of which the end alone was marked, in ns and by its event."""
    batch = MarkedBatch()
    batch.host_ns[_END], batch.events[_END] = end_ns, end
    return MarkedStep(number, epoch, samples, flags, start_ns, start, [batch], False)


BEGINS = {begin: name for name, (begin, _) in PHASES_FROM_TO.items()}
"""The phase that begins with each mark; what follows another mark counts as ``other``."""


class NvtxClock(StepClock):
    """A step clock that also draws each step and each phase as an NVTX range.

    Ranges have handles and no stack, which would belong to a thread: the mark of the last gradient
    bucket is taken on autograd's. ``open_range`` and ``close_range`` are torch's.
    """

    divides_all = True

    open_range: Callable[[str], Any] = staticmethod(torch.cuda.nvtx.range_start)
    close_range: Callable[[Any], None] = staticmethod(torch.cuda.nvtx.range_end)
    _phase: Any = None
    _whole: Any = None
    _number = 0

    def begin(self) -> None:
        super().begin()
        self._close()
        self._whole = self.open_range(f"step {self._number}")

    def mark(self, mark: Mark) -> None:
        """Close the range of the phase that ends here and open that of the next."""
        super().mark(mark)
        if self.paused or not self.divides:
            return
        if self._phase is not None:
            self.close_range(self._phase)
        name = BEGINS.get(mark)
        self._phase = None if name is None else self.open_range(name)

    def finish_step(self, number: int, epoch: int, samples: int, flags: int) -> None:
        super().finish_step(number, epoch, samples, flags)
        self._number = number + 1
        self._close()
        self._whole = self.open_range(f"step {self._number}")

    def drain(self, wait: bool = False, give_way: Callable[[], None] | None = None) -> None:
        """As the clock's; at the end of training the open ranges are closed."""
        super().drain(wait, give_way)
        if wait:
            self._close()

    def _close(self) -> None:
        for handle in (self._phase, self._whole):
            if handle is not None:
                self.close_range(handle)
        self._phase = self._whole = None
