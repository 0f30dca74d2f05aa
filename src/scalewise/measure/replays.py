"""Times of steps that are replayed one after the other: one moment each, turned into rows later.

A replayed step of 0.1 ms leaves no time for a dozen marks, and the thread that writes the records
shares the interpreter with the one that launches: both must be brief.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from dataclasses import dataclass, field

import torch


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

    def device_steps_ms(self) -> list[float]:
        """How long each took on the device, from completed events; none where there is no GPU."""
        if self.start_event is None:
            return []
        edges = [self.start_event, *self.ends]
        return [begin.elapsed_time(end) for begin, end in itertools.pairwise(edges)]
