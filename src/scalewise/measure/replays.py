"""Times of steps that are replayed one after the other: one moment each, turned into rows later.

A replayed step of 0.1 ms leaves no time for a dozen marks, and the thread that writes the records
shares the interpreter with the one that launches: both must be brief.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from scalewise.records import STEP_DTYPE, WARMUP

_UNDIVIDED = ("data_wait", "h2d", "other")
"""Phases of which a step that launches straight after another has none."""


@dataclass
class Replays:
    """The steps of one batch, replayed in a row. ``tick`` after each of them."""

    start_ns: int
    """``perf_counter_ns`` at the start of the first step."""
    start_event: torch.cuda.Event | None
    stream: torch.cuda.Stream | None
    """The stream to time; None where there is no GPU."""
    pool: deque[torch.cuda.Event]
    """Events to use again."""
    ends_ns: list[int] = field(default_factory=list)
    ends: list[torch.cuda.Event] = field(default_factory=list)
    first_step: int = 0
    epoch: int = 0
    samples: int = 0
    """Of each step."""
    untimed: int = 0
    """Steps at the front that are flagged as warm-up."""

    def tick(self) -> None:
        """A replay has been launched."""
        if self.stream is not None:
            event = self.pool.popleft() if self.pool else torch.cuda.Event(enable_timing=True)
            event.record(self.stream)
            self.ends.append(event)
        self.ends_ns.append(time.perf_counter_ns())

    def rows(
        self, host: Mapping[str, float | None], device: Mapping[str, float | None]
    ) -> npt.NDArray[np.void]:
        """One row a step, from completed events.

        ``host`` and ``device`` are phases of the first step in ms, in which the batch was fetched.
        """
        count = len(self.ends_ns)
        rows = np.zeros(count, dtype=STEP_DTYPE)
        for name in STEP_DTYPE.names or ():
            if name.endswith("_ms"):
                rows[name] = np.nan
        starts = np.array([self.start_ns, *self.ends_ns], dtype=np.int64)
        rows["step"] = np.arange(self.first_step, self.first_step + count)
        rows["start_ns"] = starts[:-1]
        rows["epoch"], rows["samples"] = self.epoch, self.samples
        rows["flags"][: self.untimed] = WARMUP
        rows["host_step_ms"] = np.diff(starts) / 1e6
        self._fill(rows, "host", host)
        if self.start_event is not None:
            edges = [self.start_event, *self.ends]
            rows["device_step_ms"] = [
                begin.elapsed_time(end) for begin, end in itertools.pairwise(edges)
            ]
            self._fill(rows, "device", device)
        return rows

    def _fill(
        self, rows: npt.NDArray[np.void], line: str, first: Mapping[str, float | None]
    ) -> None:
        for phase in _UNDIVIDED:
            value = first.get(phase)
            rows[f"{line}_{phase}_ms"] = 0.0
            rows[f"{line}_{phase}_ms"][0] = np.nan if value is None else value
