"""What a diagnosis is, and what the checks that make one look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from scalewise.analysis.breakdown import RankAnatomy
from scalewise.analysis.run import Run
from scalewise.analysis.throughput import timeline
from scalewise.analysis.usage import DeviceUsage

Limit = Literal[
    "not sharded", "uneven shards", "straggler", "stalls", "input-bound", "communication-bound",
    "launch-bound", "batch too small", "memory-bound", "compute-bound", "throttled",
    "allocator thrash", "host oversubscribed", "per-replica throughput",
    "inflated throughput", "unsynchronised timing", "redundant reductions",
    "idle pipeline stages", "launch-bound stages",
]  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """One limit."""

    limit: Limit
    ms: float
    """What it costs, in ms a step."""
    step_ms: float
    evidence: str
    refutation: str
    """A test, and what it must show if the diagnosis is right."""
    rank: int | None = None
    invalidates: bool = False
    """The run did something else than it says: its speedup means nothing."""
    repeat: int | None = None
    """Whose figures these are, where there are several runs: a table's step is their mean."""

    @property
    def cost(self) -> str:
        """``3.54 of 32.2 ms a step``, with the repeat that it was taken from."""
        whose = "" if self.repeat is None else f" in repeat {self.repeat}"
        return f"{self.ms:.3g} of {self.step_ms:.3g} ms a step{whose}"

    def __str__(self) -> str:
        return f"{self.limit} ({self.cost}): {self.evidence}"


@dataclass(frozen=True)
class Case:
    """What the checks look at: one run, and the compute time of its single-device twin."""

    run: Run
    step_ms: float
    host: RankAnatomy
    device: RankAnatomy | None
    twin_compute_ms: float | None
    """Of a typical step, mean over its runs; on a CPU without what a crowd had of it."""
    twin_step_ms: float | None = None
    """Mean over its steps and runs."""
    twin_contention_ms: float = 0.0
    """What ``twin_compute_ms`` was reduced by, mean over its runs."""

    @property
    def phases(self) -> RankAnatomy:
        return self.device or self.host

    @property
    def compute_ms(self) -> float | None:
        return compute_ms(self.phases)

    def usage(self) -> tuple[DeviceUsage, ...]:
        return self.run.usage.devices if self.run.usage else ()


def compute_ms(anatomy: RankAnatomy) -> float | None:
    """Forward and backward of a step."""
    forward, backward = anatomy.phases_ms["forward"], anatomy.phases_ms["backward"]
    return None if forward is None or backward is None else forward + backward


def median_compute_ms(run: Run) -> float | None:
    """Forward and backward of a step, median over the steps of all ranks.

    The median, because this is compared with other runs: a host that interrupts one of them for a
    few long steps must not look like fixed cost. None where it was not timed.
    """
    timed = [one.timed() for one in run.cell.steps]
    line = timeline(timed)
    each = [one.column("forward", line) + one.column("backward", line) for one in timed]
    known = np.concatenate([ms[~np.isnan(ms)] for ms in each]) if each else np.empty(0)
    return float(np.median(known)) if known.size else None
