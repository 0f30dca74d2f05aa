"""Finished steps with the marks that were taken of them, and the rows of records they become.

The rows are made on the recording thread, long after the steps: nothing here is called on the
training thread but constructors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from scalewise.measure.replays import Replays
from scalewise.measure.step_phases import Mark, device_phases_ms, host_phases_ms
from scalewise.records import STEP_DTYPE

# Asking an enumeration for its length is slower than reading the clock.
_MARKS = len(Mark)

_UNKNOWN = np.zeros(1, dtype=STEP_DTYPE)
"""A row before anything is known of it."""
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


class _Marked:
    """What is over when the device has reached the last mark of its last batch."""

    __slots__ = ()
    batches: list[MarkedBatch]

    def is_over(self, wait: bool) -> bool:
        """Whether the device has done all of it; with ``wait``, once it has."""
        end = self.batches[-1].events[Mark.OPTIMIZER_END]
        if end is None or end.query():
            return True
        if wait:
            end.synchronize()
        return wait


@dataclass(slots=True)
class MarkedStep(_Marked):
    """A step with the batches that it took."""

    number: int
    epoch: int
    samples: int
    flags: int
    start_ns: int
    start_event: torch.cuda.Event | None
    """The end of the step before; None where there is no device to time."""
    batches: list[MarkedBatch]

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


@dataclass(slots=True)
class MarkedReplays(_Marked):
    """Steps that were replayed in a row."""

    replays: Replays
    batches: list[MarkedBatch]
    """One: the marks around the batch that all of the steps share."""

    def spent_events(self) -> list[torch.cuda.Event]:
        """As :meth:`MarkedStep.spent_events`."""
        replays = self.replays
        if replays.start_event is None:
            return []
        events = self.batches[-1].events
        marked = [e for m, e in enumerate(events) if e and m != Mark.OPTIMIZER_END]
        return [replays.start_event, *replays.ends[:-1], *marked]


def step_rows(steps: Sequence[MarkedStep], on_device: bool, anatomy: bool) -> npt.NDArray[np.void]:
    """One row for each of these steps, which are over and have as many batches each.

    Args:
        steps: in their order.
        on_device: whether a device was timed.
        anatomy: whether phases were marked; without, only whole steps are known.
    """
    rows = np.repeat(_UNKNOWN, len(steps))
    rows["step"] = [step.number for step in steps]
    for name in ("start_ns", "epoch", "samples", "flags"):
        rows[name] = [getattr(step, name) for step in steps]
    marks_ns = np.array([[batch.host_ns for batch in step.batches] for step in steps])
    _fill(rows, "host", host_phases_ms(rows["start_ns"], marks_ns), anatomy)
    if on_device:
        marks_ms = np.array([_marks_ms(step) for step in steps])
        replayed = marks_ns[:, -1, Mark.REPLAY_BEGIN] != 0
        _fill(rows, "device", device_phases_ms(marks_ms, replayed), anatomy)
    return rows


def replay_rows(replayed: MarkedReplays, anatomy: bool) -> npt.NDArray[np.void]:
    """One row for each of the steps, which are over; the first of them fetched the batch."""
    replays, batch = replayed.replays, replayed.batches[-1]
    host: dict[str, float | None] = {}
    device: dict[str, float | None] = {}
    if anatomy:
        host_ns = list(batch.host_ns)
        host_ns[Mark.OPTIMIZER_END] = replays.ends_ns[0]
        starts = np.array([replays.start_ns])
        host = _only(host_phases_ms(starts, np.array([[host_ns]])))
    if anatomy and replays.start_event is not None:
        marks_ms = np.array([[_elapsed_ms(replays.start_event, batch)]])
        device = _only(device_phases_ms(marks_ms, np.array([True])))
    return replays.rows(host, device)


def _fill(
    rows: npt.NDArray[np.void],
    line: str,
    phases: dict[str, npt.NDArray[np.float64]],
    anatomy: bool,
) -> None:
    for name in phases if anatomy else ("step",):
        rows[f"{line}_{name}_ms"] = phases[name]


def _marks_ms(step: MarkedStep) -> list[list[float]]:
    """From the start of the step to each mark, without what came between two of its batches."""
    assert step.start_event is not None
    marks_ms, left_out_ms, before = [], 0.0, step.start_event
    for batch in step.batches:
        if batch.resumed is not None:
            left_out_ms += before.elapsed_time(batch.resumed)
        elapsed_ms = _elapsed_ms(step.start_event, batch)
        marks_ms.append([ms - left_out_ms for ms in elapsed_ms])
        before = batch.events[Mark.OPTIMIZER_END] or before
    return marks_ms


def _elapsed_ms(start: torch.cuda.Event, batch: MarkedBatch) -> list[float]:
    """From ``start`` to each mark of ``batch``, from completed events; NaN without one."""
    return [math.nan if event is None else start.elapsed_time(event) for event in batch.events]


def _only(phases: dict[str, npt.NDArray[np.float64]]) -> dict[str, float | None]:
    """The phases of a single step, None where there is none."""
    return {name: None if np.isnan(ms[0]) else float(ms[0]) for name, ms in phases.items()}
