"""When each phase of each step began and ended, on the host and on the device.

Marking costs a clock reading and, on a GPU, a CUDA event recorded into the stream; nothing waits
for the device. The events are read by another thread long after the step, when they have all
completed, and go back into a pool.

A step lasts from the end of the optimizer step before it to the end of its own, so the phases of
a step add up to it on the host. On the device the same marks cut the stream's time line.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from scalewise.measure.replays import Replays
from scalewise.measure.step_phases import DEVICE_MARKS, Mark, device_phases_ms, host_phases_ms
from scalewise.records import STEP_DTYPE, StepWriter

# Looked up by number: asking an enumeration for its length or a tuple for a member is slower than
# reading the clock, and this happens ten times a step.
_MARKS = len(Mark)
_CUTS = tuple(mark in DEVICE_MARKS for mark in Mark)
_CUTS_NOTHING = (False,) * _MARKS

_AT_ONCE = 32
"""Rows that are made together: one by one, each would cost several times as much."""
_GIVE_WAY_S = 5e-5
"""After them the recording thread lets go of the interpreter: training waits for the work of so
many rows at most, and not for the 5 ms after which Python would make the thread let go."""

_UNKNOWN = np.zeros(1, dtype=STEP_DTYPE)
"""A row before anything is known of it."""
for _name in STEP_DTYPE.names or ():
    if _name.endswith("_ms"):
        _UNKNOWN[_name] = np.nan

_Event = torch.cuda.Event


class _Batch:
    """Marks of one batch. Several make a step where gradients are accumulated."""

    __slots__ = ("events", "host_ns")

    def __init__(self) -> None:
        self.host_ns = [0] * _MARKS
        self.events: list[_Event | None] = [None] * _MARKS


@dataclass(slots=True)
class _Step:
    number: int
    epoch: int
    samples: int
    flags: int
    start_ns: int
    start_event: _Event | None
    batches: list[_Batch]


@dataclass
class _Replayed:
    replays: Replays
    batches: list[_Batch]
    """One: the marks around the batch that all of the steps share."""


class StepClock:
    """Takes marks on the training thread; ``drain`` turns finished steps into records elsewhere.

    Args:
        writer: where rows go.
        device: the CUDA device to time, or None where there is none.
        anatomy: whether phases are marked; without, a step is known as a whole only.
    """

    def __init__(
        self, writer: StepWriter, device: torch.device | None, anatomy: bool = True
    ) -> None:
        self._anatomy = anatomy
        self._writer = writer
        self._device = device
        # Asked for once: looking up the current stream costs more than recording into it.
        self._stream = None if device is None else torch.cuda.current_stream(device)
        self._cuts = _CUTS_NOTHING if device is None else _CUTS
        self._pool: deque[_Event] = deque()
        self._finished: deque[_Step | _Replayed] = deque()
        self._batch = _Batch()
        self._batches: list[_Batch] = [self._batch]
        self._start_ns = 0
        self._start_event: _Event | None = None
        self.paused = False
        """True while marks are to leave no trace."""

    def begin(self) -> None:
        """The next step starts now: at the start of training, and after an interruption."""
        self._start_ns = time.perf_counter_ns()
        self._start_event = self._record()
        self._batch = _Batch()
        self._batches = [self._batch]

    def mark(self, mark: Mark) -> None:
        if self.paused:
            return
        batch = self._batch
        batch.host_ns[mark] = time.perf_counter_ns()
        if self._cuts[mark]:
            batch.events[mark] = self._record()

    def continue_step(self) -> None:
        """Another batch follows before the optimizer steps (gradient accumulation)."""
        self._batch = _Batch()
        self._batches.append(self._batch)

    def finish_step(self, number: int, epoch: int, samples: int, flags: int) -> None:
        """The optimizer has stepped; the last mark of this step is the start of the next."""
        step = _Step(
            number, epoch, samples, flags, self._start_ns, self._start_event, self._batches
        )
        last = self._batch
        self._finished.append(step)
        self._start_ns = last.host_ns[Mark.OPTIMIZER_END]
        self._start_event = last.events[Mark.OPTIMIZER_END]
        self._batch = _Batch()
        self._batches = [self._batch]

    def begin_replays(self) -> Replays:
        """Steps on the batch that was just marked are about to be replayed one after the other."""
        return Replays(self._start_ns, self._start_event, self._stream, self._pool)

    def finish_replays(self, replays: Replays) -> None:
        """The last of them has been launched; its end is the start of the next step."""
        self._batch.host_ns[Mark.REPLAY_BEGIN] = self._batch.host_ns[Mark.TRANSFER_END]
        self._batch.host_ns[Mark.OPTIMIZER_END] = replays.ends_ns[-1]
        if replays.ends:
            self._batch.events[Mark.OPTIMIZER_END] = replays.ends[-1]
        self._finished.append(_Replayed(replays, self._batches))
        self._start_ns = replays.ends_ns[-1]
        self._start_event = replays.ends[-1] if replays.ends else None
        self._batch = _Batch()
        self._batches = [self._batch]

    def drain(self, wait: bool = False) -> None:
        """Write every finished step whose events have completed. Not for the training thread.

        With ``wait`` the device is waited for: at the end of training only.
        """
        while self._finished:
            first = self._finished[0]
            ready: Sequence[_Step | _Replayed]
            if isinstance(first, _Replayed):
                ready = [first] if _is_over(first.batches, wait) else []
                if ready:
                    self._write_replays(first)
            else:
                ready = steps = self._ready(len(first.batches), wait)
                if steps:
                    self._write(steps)
            if not ready:
                break
            for _ in ready:
                self._finished.popleft()
            if not wait and self._finished:
                time.sleep(_GIVE_WAY_S)
        self._writer.flush()

    def _ready(self, batches: int, wait: bool) -> list[_Step]:
        """The first finished steps of so many batches that the device has done, not too many."""
        ready = []
        for step in itertools.islice(self._finished, _AT_ONCE):
            if isinstance(step, _Replayed) or len(step.batches) != batches:
                break
            if not _is_over(step.batches, wait):
                break
            ready.append(step)
        return ready

    def _record(self) -> _Event | None:
        if self._device is None:
            return None
        try:
            event = self._pool.popleft()
        except IndexError:
            event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def _write_replays(self, step: _Replayed) -> None:
        replays, batch = step.replays, step.batches[-1]
        host: dict[str, float | None] = {}
        device: dict[str, float | None] = {}
        if self._anatomy:
            host_ns = list(batch.host_ns)
            host_ns[Mark.OPTIMIZER_END] = replays.ends_ns[0]
            starts = np.array([replays.start_ns])
            host = _only(host_phases_ms(starts, np.array([[host_ns]])))
        if self._anatomy and replays.start_event is not None:
            marks_ms = np.array([[_elapsed_ms(replays.start_event, batch)]])
            device = _only(device_phases_ms(marks_ms, np.array([True])))
        self._writer.append_rows(replays.rows(host, device))
        if replays.start_event is not None:
            marked = [e for m, e in enumerate(batch.events) if e and m != Mark.OPTIMIZER_END]
            self._pool.extend([replays.start_event, *replays.ends[:-1], *marked])

    def _write(self, steps: Sequence[_Step]) -> None:
        """One row for each of these steps, which have as many batches each."""
        rows = np.repeat(_UNKNOWN, len(steps))
        for column in ("number", "start_ns", "epoch", "samples", "flags"):
            name = "step" if column == "number" else column
            rows[name] = [getattr(step, column) for step in steps]
        marks_ns = np.array([[batch.host_ns for batch in step.batches] for step in steps])
        self._fill(rows, "host", host_phases_ms(rows["start_ns"], marks_ns))
        if self._device is not None:
            marks_ms = np.array([_marks_ms(step) for step in steps])
            replayed = marks_ns[:, -1, Mark.REPLAY_BEGIN] != 0
            self._fill(rows, "device", device_phases_ms(marks_ms, replayed))
        self._writer.append_rows(rows)
        for step in steps:
            self._take_back(step)

    def _fill(
        self, rows: npt.NDArray[np.void], line: str, phases: dict[str, npt.NDArray[np.float64]]
    ) -> None:
        for name in phases if self._anatomy else ("step",):
            rows[f"{line}_{name}_ms"] = phases[name]

    def _take_back(self, step: _Step) -> None:
        """Its events go back into the pool, but for the last: the next step starts with it."""
        if step.start_event is None:
            return
        self._pool.append(step.start_event)
        for batch in step.batches:
            final = batch is step.batches[-1]
            marked = batch.events[: Mark.OPTIMIZER_END] if final else batch.events
            self._pool.extend(event for event in marked if event is not None)


def _is_over(batches: Sequence[_Batch], wait: bool) -> bool:
    """Whether the device has done a step; with ``wait``, once it has."""
    end = batches[-1].events[Mark.OPTIMIZER_END]
    if end is None or end.query():
        return True
    if wait:
        end.synchronize()
    return wait


def _marks_ms(step: _Step) -> list[list[float]]:
    assert step.start_event is not None
    return [_elapsed_ms(step.start_event, batch) for batch in step.batches]


def _elapsed_ms(start: _Event, batch: _Batch) -> list[float]:
    """From ``start`` to each mark of ``batch``, from completed events; NaN without one."""
    return [math.nan if event is None else start.elapsed_time(event) for event in batch.events]


def _only(phases: dict[str, npt.NDArray[np.float64]]) -> dict[str, float | None]:
    """The phases of a single step, None where there is none."""
    return {name: None if np.isnan(ms[0]) else float(ms[0]) for name, ms in phases.items()}
