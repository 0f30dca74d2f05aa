"""When each phase of each step began and ended, on the host and on the device.

Marking costs a clock reading and, on a GPU, a CUDA event recorded into the stream; nothing waits
for the device. The events are read by another thread long after the step, when they have all
completed, and go back into a pool.

A step lasts from the end of the optimizer step before it to the end of its own, so the phases of
a step add up to it on the host. On the device the same marks cut the stream's time line.
"""

from __future__ import annotations

import enum
import time
from collections import deque
from dataclasses import dataclass

import torch

from scalewise.measure.replays import Replays
from scalewise.records import StepWriter


class Mark(enum.IntEnum):
    """The moments of one batch, in order."""

    FETCH_BEGIN = 0
    FETCH_END = 1
    TRANSFER_END = 2
    FORWARD_BEGIN = 3
    FORWARD_END = 4
    BACKWARD_BEGIN = 5
    LAST_BUCKET = 6
    BACKWARD_END = 7
    OPTIMIZER_BEGIN = 8
    OPTIMIZER_END = 9
    REPLAY_BEGIN = 10
    """In place of all from ``FORWARD_BEGIN`` on but the last: the step is one launch."""


_DEVICE_MARKS = (
    Mark.FETCH_BEGIN,
    Mark.FETCH_END,
    Mark.TRANSFER_END,
    Mark.FORWARD_END,
    Mark.LAST_BUCKET,
    Mark.BACKWARD_END,
    Mark.OPTIMIZER_END,
)
"""The marks that cut the device's time line. Between the others the host only does bookkeeping,
which keeps no device busy, and an event costs more than a clock reading."""

# Looked up by number: asking an enumeration for its length or a tuple for a member is slower than
# reading the clock, and this happens ten times a step.
_MARKS = len(Mark)
_CUTS = tuple(mark in _DEVICE_MARKS for mark in Mark)
_CUTS_NOTHING = (False,) * _MARKS

_GIVE_WAY_S = 5e-5
"""Between two rows the recording thread lets go of the interpreter: training waits for the work
of one row at most, and not for the 5 ms after which Python would make the thread let go."""

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
            step = self._finished[0]
            end = step.batches[-1].events[Mark.OPTIMIZER_END]
            if end is not None and not end.query():
                if not wait:
                    return
                end.synchronize()
            if isinstance(step, _Replayed):
                self._write_replays(step)
            else:
                self._write(step)
            self._finished.popleft()
            if not wait and self._finished:
                time.sleep(_GIVE_WAY_S)
        self._writer.flush()

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
            host = host_phases_ms(replays.start_ns, [host_ns])
        if self._anatomy and replays.start_event is not None:
            device = device_phases_ms(replays.start_event, [batch.events], replayed=True)
        self._writer.append_rows(replays.rows(host, device))
        if replays.start_event is not None:
            marked = [e for m, e in enumerate(batch.events) if e and m != Mark.OPTIMIZER_END]
            self._pool.extend([replays.start_event, *replays.ends[:-1], *marked])

    def _write(self, step: _Step) -> None:
        host = host_phases_ms(step.start_ns, [batch.host_ns for batch in step.batches])
        device = None
        if step.start_event is not None:
            device = device_phases_ms(
                step.start_event,
                [batch.events for batch in step.batches],
                replayed=step.batches[-1].host_ns[Mark.REPLAY_BEGIN] != 0,
            )
            # The start event is the last of the step before: nobody needs it any more. The last
            # event of this step is the next one's start and goes back with that one.
            self._pool.append(step.start_event)
            for batch in step.batches:
                for mark, event in enumerate(batch.events):
                    final = batch is step.batches[-1] and mark == Mark.OPTIMIZER_END
                    if event is not None and not final:
                        self._pool.append(event)
        if not self._anatomy:
            host = {"step": host["step"]}
            device = None if device is None else {"step": device["step"]}
        self._writer.append(
            step.number, step.start_ns, step.epoch, step.samples, step.flags, host, device
        )


def host_phases_ms(start_ns: int, batches: list[list[int]]) -> dict[str, float | None]:
    """Phases of one step on the host's time line.

    ``start_ns`` is when the step began; ``batches`` holds, for each batch of the step, one
    ``perf_counter_ns`` reading a :class:`Mark`, 0 where the moment did not occur. Phases of
    several batches are added. What no phase covers is ``other``, so that all add up to ``step``.
    """
    ends = batches[-1]
    total = ends[Mark.OPTIMIZER_END] - start_ns
    phases = {
        "data_wait": _sum(batches, Mark.FETCH_BEGIN, Mark.FETCH_END),
        "h2d": _sum(batches, Mark.FETCH_END, Mark.TRANSFER_END),
        "forward": _sum(batches, Mark.FORWARD_BEGIN, Mark.FORWARD_END),
        "optimizer": _sum(batches, Mark.OPTIMIZER_BEGIN, Mark.OPTIMIZER_END),
    }
    reduced = ends[Mark.LAST_BUCKET] != 0
    whole = _sum(batches, Mark.BACKWARD_BEGIN, Mark.BACKWARD_END)
    exposed = _sum(batches, Mark.LAST_BUCKET, Mark.BACKWARD_END) if reduced else None
    phases["exposed_comm"] = exposed
    phases["backward"] = whole - exposed if whole is not None and exposed is not None else whole
    replay = _sum(batches, Mark.REPLAY_BEGIN, Mark.OPTIMIZER_END)
    if replay is not None:
        # Its data came with an earlier step of the same batch: no time went into fetching any.
        phases["data_wait"] = phases["data_wait"] or 0
        phases["h2d"] = phases["h2d"] or 0
    phases["other"] = total - (replay or 0) - sum(v for v in phases.values() if v is not None)
    ready = ends[Mark.LAST_BUCKET] if reduced else ends[Mark.BACKWARD_END]
    phases["arrival"] = ready - start_ns if ready else None
    phases["step"] = total
    return {name: None if ns is None else ns / 1e6 for name, ns in phases.items()}


def _sum(batches: list[list[int]], begin: Mark, end: Mark) -> int | None:
    spans = [b[end] - b[begin] for b in batches if b[begin] and b[end]]
    return sum(spans) if spans else None


def device_phases_ms(
    start: _Event, batches: list[list[_Event | None]], replayed: bool = False
) -> dict[str, float | None]:
    """Phases of one step on the device's time line, from completed events.

    Consecutive events cut the stream, so each phase runs from the event before it to its own:
    ``other`` until the loader is asked, ``data_wait`` until the batch is there, ``h2d`` until it
    is on the device, ``forward``, ``backward`` until the last bucket is ready (or its own end),
    ``exposed_comm`` until backward ends, ``optimizer`` until it has stepped. What a replayed step
    does after its data are there has no phases.
    """
    phases: dict[str, float] = {"data_wait": 0.0, "h2d": 0.0} if replayed else {}
    arrival: float | None = None
    at = start
    closes = {
        Mark.FETCH_BEGIN: "other",
        Mark.FETCH_END: "data_wait",
        Mark.TRANSFER_END: "h2d",
        Mark.FORWARD_END: "forward",
        Mark.LAST_BUCKET: "backward",
        Mark.BACKWARD_END: "exposed_comm",
        Mark.OPTIMIZER_END: "optimizer",
    }
    for events in batches:
        reduced = events[Mark.LAST_BUCKET] is not None
        for mark in _DEVICE_MARKS:
            event = events[mark]
            if event is None:
                continue
            if replayed and mark == Mark.OPTIMIZER_END:
                at = event
                continue
            name = closes[mark]
            if mark == Mark.BACKWARD_END and not reduced:
                name = "backward"
            phases[name] = phases.get(name, 0.0) + at.elapsed_time(event)
            if mark == Mark.LAST_BUCKET or (mark == Mark.BACKWARD_END and not reduced):
                arrival = start.elapsed_time(event)
            at = event
    return {**phases, "step": start.elapsed_time(at), "arrival": arrival}
