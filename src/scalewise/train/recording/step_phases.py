"""Finished steps with the marks that were taken of them, and the rows of records they become.

Rows are made on the recording thread, long after the steps. It shares the interpreter with the
thread that trains, so nothing is done once a step that can be done once for many of them."""

from __future__ import annotations

import enum
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from scalewise.records import STEP_DTYPE, WARMUP

Times = npt.NDArray[np.float64]


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


_CLOSES = {
    Mark.FETCH_BEGIN: "other",
    Mark.FETCH_END: "data_wait",
    Mark.TRANSFER_END: "h2d",
    Mark.FORWARD_END: "forward",
    Mark.LAST_BUCKET: "backward",
    Mark.BACKWARD_END: "exposed_comm",
    Mark.OPTIMIZER_END: "optimizer",
}
"""The phase of the device that ends with each mark which cuts its time line."""
DEVICE_MARKS = tuple(_CLOSES)
"""Between the others the host only does bookkeeping, which keeps no device busy, and an event
costs more than a clock reading."""

PHASES_FROM_TO = {
    "data_wait": (Mark.FETCH_BEGIN, Mark.FETCH_END),
    "h2d": (Mark.FETCH_END, Mark.TRANSFER_END),
    "forward": (Mark.FORWARD_BEGIN, Mark.FORWARD_END),
    "backward": (Mark.BACKWARD_BEGIN, Mark.BACKWARD_END),
    "exposed_comm": (Mark.LAST_BUCKET, Mark.BACKWARD_END),
    "optimizer": (Mark.OPTIMIZER_BEGIN, Mark.OPTIMIZER_END),
    "replay": (Mark.REPLAY_BEGIN, Mark.OPTIMIZER_END),
}
"""From which mark to which each phase lasts on the host. What is exposed lies within backward."""
_BEGINS, _ENDS = ([marks[end] for marks in PHASES_FROM_TO.values()] for end in (0, 1))
_FETCHING = ("data_wait", "h2d")


def host_phases_ms(
    start_ns: npt.NDArray[np.int64], marks_ns: npt.NDArray[np.int64]
) -> dict[str, Times]:
    """Phases of steps on the host's time line.

    Args:
        start_ns: when each step began, shape ``[steps]``.
        marks_ns: one ``perf_counter_ns`` reading a :class:`Mark` of each batch, 0 where the moment
            did not occur, shape ``[steps, batches, marks]``.

    Returns ms of each phase, of ``arrival`` (all gradients are ready) and of the whole ``step``,
    each of shape ``[steps]``, NaN where there is none. Phases of several batches are added. What
    no phase covers is ``other``, so that all add up to ``step``.
    """
    last = marks_ns[:, -1]
    total_ms = (last[:, Mark.OPTIMIZER_END] - start_ns) / 1e6
    reduced = last[:, Mark.LAST_BUCKET] != 0

    begins, ends = marks_ns[:, :, _BEGINS], marks_ns[:, :, _ENDS]
    both = (begins != 0) & (ends != 0)
    all_ms = np.where(both, ends - begins, 0).sum(axis=1).T / 1e6
    lasted_ms = dict(zip(PHASES_FROM_TO, all_ms, strict=True))
    known = dict(zip(PHASES_FROM_TO, both.any(axis=1).T, strict=True))
    known["exposed_comm"] &= reduced
    exposed_ms = np.where(known["exposed_comm"], lasted_ms["exposed_comm"], 0.0)
    covered_ms = sum(lasted_ms.values()) - lasted_ms["exposed_comm"]
    # Within backward it is counted already, unless nobody marked where that began.
    covered_ms += np.where(known["backward"], 0.0, exposed_ms)
    lasted_ms["backward"] = lasted_ms["backward"] - exposed_ms
    # Data of a replayed step came with an earlier one of its batch: no time went into fetching any.
    for name in _FETCHING:
        known[name] |= known["replay"]
    phases = {n: np.where(known[n], ms, np.nan) for n, ms in lasted_ms.items() if n != "replay"}

    ready_ns = np.where(reduced, last[:, Mark.LAST_BUCKET], last[:, Mark.BACKWARD_END])
    arrival_ms = np.where(ready_ns != 0, (ready_ns - start_ns) / 1e6, np.nan)
    return {**phases, "other": total_ms - covered_ms, "arrival": arrival_ms, "step": total_ms}


def device_phases_ms(marks_ms: Times, replayed: npt.NDArray[np.bool_]) -> dict[str, Times]:
    """Phases of steps on the device's time line.

    Args:
        marks_ms: from the start of the step until the stream reached each :class:`Mark` of each
            batch, NaN where there is no event, shape ``[steps, batches, marks]``.
        replayed: which steps were one launch, shape ``[steps]``.

    Returns the same as :func:`host_phases_ms`. Consecutive marks cut the stream, so each phase runs
    from the mark before it to its own: ``other`` until the loader is asked, ``data_wait`` until
    the batch is there, ``h2d`` until it is on the device, ``forward``, ``backward`` until the last
    bucket is ready (or its own end), ``exposed_comm`` until backward ends, ``optimizer`` until it
    has stepped. What a replayed step does after its data are there has no phases.
    """
    steps = len(marks_ms)
    cuts = marks_ms[:, :, DEVICE_MARKS]
    there = ~np.isnan(cuts)
    # Where the stream was last: a mark that is missing cuts nothing.
    reached = np.maximum.accumulate(np.where(there, cuts, 0.0).reshape(steps, -1), axis=1)
    before = np.concatenate([np.zeros((steps, 1)), reached[:, :-1]], axis=1).reshape(cuts.shape)
    lasts_ms = np.where(there, cuts - before, 0.0)
    lasting = dict(zip(_CLOSES.values(), np.moveaxis(lasts_ms, 2, 0), strict=True))
    known = dict(zip(_CLOSES.values(), np.moveaxis(there, 2, 0), strict=True))
    # Without a reduction the end of backward closes backward itself.
    unreduced = np.isnan(marks_ms[:, :, Mark.LAST_BUCKET])
    lasting["backward"] = lasting["backward"] + np.where(unreduced, lasting["exposed_comm"], 0.0)
    known["backward"] = known["backward"] | (unreduced & known["exposed_comm"])
    lasting["exposed_comm"] = np.where(unreduced, 0.0, lasting["exposed_comm"])
    known["exposed_comm"] = known["exposed_comm"] & ~unreduced
    known["optimizer"] = known["optimizer"] & ~replayed[:, None]

    phases = {
        name: np.where(known[name].any(axis=1), ms.sum(axis=1), np.nan)
        for name, ms in lasting.items()
    }
    for name in _FETCHING:
        phases[name][replayed & np.isnan(phases[name])] = 0.0
    at_ms = np.where(unreduced, marks_ms[:, :, Mark.BACKWARD_END], marks_ms[:, :, Mark.LAST_BUCKET])
    return {**phases, "arrival": np.fmax.reduce(at_ms, axis=1), "step": reached[:, -1]}


# Asking an enumeration for its length is slower than reading the clock.
_MARKS = len(Mark)
_UNDIVIDED = ("data_wait", "h2d", "other")
"""Phases of which a step that launches straight after another has none."""
_UNKNOWN = np.zeros(1, dtype=STEP_DTYPE)


for _name in STEP_DTYPE.names or ():
    if _name.endswith("_ms"):
        _UNKNOWN[_name] = np.nan


class MarkedBatch:
    """Marks of one batch, by number. Several make a step where gradients are accumulated."""

    __slots__ = ("events", "host_ns", "resumed")

    def __init__(self) -> None:
        self.host_ns = [0] * _MARKS
        """Readings of ``perf_counter_ns``, 0 where the moment did not occur."""
        self.events: list[torch.cuda.Event | None] = [None] * _MARKS
        self.resumed: torch.cuda.Event | None = None
        """When the step went on with this batch, if something else came before it."""


@dataclass(slots=True)
class MarkedStep:
    number: int
    epoch: int
    samples: int
    flags: int
    start_ns: int
    start_event: torch.cuda.Event | None
    """The end of the step before; None where there is no device to time."""
    batches: list[MarkedBatch]
    divided: bool
    """Whether its phases were marked, or its end alone."""
    steps: ClassVar[int] = 1

    @property
    def end(self) -> torch.cuda.Event | None:
        """The device is done with all of it when it has reached this."""
        return self.batches[-1].events[Mark.OPTIMIZER_END]

    def spent_events(self) -> list[torch.cuda.Event]:
        """Events nobody needs any more: all but the last, with which the next step starts."""
        if self.start_event is None:
            return []
        spent: list[torch.cuda.Event | None] = [self.start_event]
        for batch in self.batches:
            final = batch is self.batches[-1]
            spent += batch.events[: Mark.OPTIMIZER_END] if final else batch.events
            spent.append(batch.resumed)
        return [event for event in spent if event is not None]


@dataclass
class Replays:
    """The steps of one batch, replayed in a row. ``tick`` after each of them.

    A replayed step of 0.1 ms leaves no time for a dozen marks: it has one moment, its end.
    """

    first: MarkedStep
    """With the marks around the batch that all of the steps share."""
    record: Callable[[], torch.cuda.Event | None]
    """Makes an event of this moment; None where there is no GPU to time."""
    ends_ns: list[int] = field(default_factory=list)
    ends: list[torch.cuda.Event] = field(default_factory=list)
    untimed: int = 0
    """Steps at the front that are flagged as warm-up."""

    def tick(self) -> None:
        event = self.record()
        if event is not None:
            self.ends.append(event)
        self.ends_ns.append(time.perf_counter_ns())

    @property
    def steps(self) -> int:
        return len(self.ends_ns)

    @property
    def batches(self) -> list[MarkedBatch]:
        return self.first.batches

    @property
    def end(self) -> torch.cuda.Event | None:
        return self.ends[-1] if self.ends else None

    def device_steps_ms(self) -> list[float]:
        assert self.first.start_event is not None
        edges = [self.first.start_event, *self.ends]
        return [begin.elapsed_time(end) for begin, end in itertools.pairwise(edges)]

    def spent_events(self) -> list[torch.cuda.Event]:
        """As :meth:`MarkedStep.spent_events`."""
        return [*self.first.spent_events(), *self.ends[:-1]]


def is_past(event: torch.cuda.Event | None, wait: bool) -> bool:
    """Whether the device has come to it, as the host always has; with ``wait``, once it has."""
    if event is None or event.query():
        return True
    if wait:
        event.synchronize()
    return wait


def step_rows(steps: Sequence[MarkedStep], on_device: bool) -> npt.NDArray[np.void]:
    """One row for each of these steps, in their order; they are over, of as many batches each.

    Of a step that was not divided only the whole is known.
    """
    rows = np.repeat(_UNKNOWN, len(steps))
    rows["step"] = [step.number for step in steps]
    for name in ("start_ns", "epoch", "samples", "flags"):
        rows[name] = [getattr(step, name) for step in steps]
    ends_ns = [step.batches[-1].host_ns[Mark.OPTIMIZER_END] for step in steps]
    rows["host_step_ms"] = (np.array(ends_ns) - rows["start_ns"]) / 1e6
    if on_device:
        rows["device_step_ms"] = [_whole_ms(step) for step in steps]
    at = [n for n, step in enumerate(steps) if step.divided]
    if at:
        divided = [steps[n] for n in at]
        marks_ns = np.array([[batch.host_ns for batch in step.batches] for step in divided])
        _fill(rows, at, "host", host_phases_ms(rows["start_ns"][at], marks_ns))
        if on_device:
            marks_ms = np.array([_marks_ms(step) for step in divided])
            replayed = marks_ns[:, -1, Mark.REPLAY_BEGIN] != 0
            _fill(rows, at, "device", device_phases_ms(marks_ms, replayed))
    return rows


def replay_rows(replayed: Sequence[Replays], on_device: bool) -> npt.NDArray[np.void]:
    """One row for each of the steps in all of these, which are over.

    The first step of each fetched the batch, so only that one has phases.
    """
    counts = [replays.steps for replays in replayed]
    starts = np.cumsum([0, *counts[:-1]])
    rows = np.repeat(step_rows([replays.first for replays in replayed], on_device), counts)
    within = np.arange(len(rows)) - np.repeat(starts, counts)
    rows["step"] += within.astype(rows["step"].dtype)
    untimed = np.repeat([replays.untimed for replays in replayed], counts)
    rows["flags"] = np.where(within < untimed, WARMUP, 0)
    edges_ns = [(replays.first.start_ns, *replays.ends_ns) for replays in replayed]
    rows["start_ns"] = [moment for edges in edges_ns for moment in edges[:-1]]
    rows["host_step_ms"] = np.concatenate([np.diff(edges) for edges in edges_ns]) / 1e6
    if on_device:
        rows["device_step_ms"] = [ms for replays in replayed for ms in replays.device_steps_ms()]
    for line in ("host", "device") if on_device else ("host",):
        for phase in _UNDIVIDED:
            rows[f"{line}_{phase}_ms"][within > 0] = 0.0
    return rows


def _fill(
    rows: npt.NDArray[np.void], at: Sequence[int], line: str, phases: dict[str, Times]
) -> None:
    for name, times in phases.items():
        rows[f"{line}_{name}_ms"][at] = times


def _whole_ms(step: MarkedStep) -> float:
    assert step.start_event is not None and step.end is not None
    if len(step.batches) == 1:
        return float(step.start_event.elapsed_time(step.end))
    return _marks_ms(step)[-1][Mark.OPTIMIZER_END]


def _marks_ms(step: MarkedStep) -> list[list[float]]:
    """From the start of the step to each mark, without what came between two of its batches.

    NaN without an event."""
    assert step.start_event is not None
    marks_ms, left_out_ms, before = [], 0.0, step.start_event
    for batch in step.batches:
        if batch.resumed is not None:
            left_out_ms += before.elapsed_time(batch.resumed)
        marks_ms.append([
            math.nan if event is None else step.start_event.elapsed_time(event) - left_out_ms
            for event in batch.events
        ])  # fmt: skip
        before = batch.events[Mark.OPTIMIZER_END] or before
    return marks_ms
