"""Finished steps with the marks that were taken of them, and the rows of records they become.

The rows are made on the recording thread, long after the steps: nothing here is called on the
training thread but constructors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from scalewise.measure.replays import Replays
from scalewise.measure.step_phases import Mark, device_phases_ms, host_phases_ms
from scalewise.records import STEP_DTYPE, WARMUP

# Asking an enumeration for its length is slower than reading the clock.
_MARKS = len(Mark)

_UNDIVIDED = ("data_wait", "h2d", "other")
"""Phases of which a step that launches straight after another has none."""
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

    def is_like(self, other: _Marked) -> bool:
        """Whether their rows can be made together."""
        return type(self) is type(other) and len(self.batches) == len(other.batches)


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
    steps: ClassVar[int] = 1

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

    @property
    def steps(self) -> int:
        return len(self.replays.ends_ns)

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


def replay_rows(replayed: Sequence[MarkedReplays], anatomy: bool) -> npt.NDArray[np.void]:
    """One row for each of the steps in all of these, which are over.

    The first step of each fetched the batch, so only that one has phases.
    """
    all_replays = [one.replays for one in replayed]
    counts = [len(replays.ends_ns) for replays in all_replays]
    firsts = np.cumsum([0, *counts[:-1]])
    rows = np.repeat(_UNKNOWN, sum(counts))
    within = np.arange(len(rows)) - np.repeat(firsts, counts)
    rows["step"] = within + np.repeat([replays.first_step for replays in all_replays], counts)
    untimed = np.repeat([replays.untimed for replays in all_replays], counts)
    rows["flags"] = np.where(within < untimed, WARMUP, 0)
    for name in ("epoch", "samples"):
        rows[name] = np.repeat([getattr(replays, name) for replays in all_replays], counts)
    edges_ns = [(replays.start_ns, *replays.ends_ns) for replays in all_replays]
    rows["start_ns"] = [moment for edges in edges_ns for moment in edges[:-1]]
    rows["host_step_ms"] = np.concatenate([np.diff(edges) for edges in edges_ns]) / 1e6
    _fill_first(rows, "host", firsts, _host_phases(replayed) if anatomy else None)
    steps_ms = [ms for replays in all_replays for ms in replays.device_steps_ms()]
    if steps_ms:
        rows["device_step_ms"] = steps_ms
        _fill_first(rows, "device", firsts, _device_phases(replayed) if anatomy else None)
    return rows


def _host_phases(replayed: Sequence[MarkedReplays]) -> dict[str, npt.NDArray[np.float64]]:
    """Of the first step of each."""
    marks_ns = np.array([one.batches[-1].host_ns for one in replayed])
    marks_ns[:, Mark.OPTIMIZER_END] = [one.replays.ends_ns[0] for one in replayed]
    starts_ns = np.array([one.replays.start_ns for one in replayed])
    return host_phases_ms(starts_ns, marks_ns[:, None])


def _device_phases(replayed: Sequence[MarkedReplays]) -> dict[str, npt.NDArray[np.float64]]:
    """Of the first step of each."""
    marks_ms = []
    for one in replayed:
        assert one.replays.start_event is not None
        marks_ms.append([_elapsed_ms(one.replays.start_event, one.batches[-1])])
    return device_phases_ms(np.array(marks_ms), np.ones(len(replayed), dtype=bool))


def _fill_first(
    rows: npt.NDArray[np.void],
    line: str,
    firsts: npt.NDArray[np.int_],
    phases: dict[str, npt.NDArray[np.float64]] | None,
) -> None:
    for phase in _UNDIVIDED:
        rows[f"{line}_{phase}_ms"] = 0.0
        rows[f"{line}_{phase}_ms"][firsts] = np.nan if phases is None else phases[phase]


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
