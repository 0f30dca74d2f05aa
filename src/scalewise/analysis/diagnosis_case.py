"""What a diagnosis is, and what the checks that make one look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from scalewise.analysis.devices import DeviceUsage
from scalewise.analysis.run import Run
from scalewise.analysis.steps import RankAnatomy, pipeline_of, timeline

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


SHARE = 0.10
"""Share of a step from which a cost is a limit: less than what repeats of a run differ by is
nothing that a user could see mended."""

LAUNCH_BOUND_SM_PERCENT = 50.0
"""Below this share of its cycles with work, a GPU that computes idles more than it works."""

LEAST_CONTENTION_SHARE = 0.01
"""Share of a step from which a crowd's part of a cost is told: the figures around it have three
digits, and a tenth of what makes a limit decides none."""


@dataclass(frozen=True)
class SmActivity:
    """Where the SMs of the GPUs had work, mean over GPUs."""

    compute_ms: float
    """Forward and backward of a step, median."""
    busy_percent: float
    """Share of that time in which the SMs had work, 100 at most."""
    dram_percent: float | None
    """Share of that time in which DRAM was active."""
    readings: int
    """Of all GPUs, of which the two are means."""

    @property
    def is_launch_bound(self) -> bool:
        return self.busy_percent < LAUNCH_BOUND_SM_PERCENT


def sm_activity(case: Case) -> SmActivity | None:
    """Activity while computing; None without a GPU or its GPM counters.

    The counters are means over whole steps. Work is nearly all in forward and backward, so a GPU
    that waits between steps (for its loader, for another rank) is not taken for one whose kernels
    leave it idle.
    """
    compute = median_compute_ms(case.run)
    usage = case.run.usage
    sm = usage.mean("sm_activity_percent") if usage else None
    if usage is None or compute is None or sm is None or not compute > 0:
        return None
    dram = usage.mean("dram_activity_percent")
    # Never less than it was over the whole step, whatever the timelines say.
    stretch = max(1.0, case.step_ms / compute)
    whole = min(100.0, dram * stretch) if dram is not None else None
    return SmActivity(compute, min(100.0, sm * stretch), whole, usage.activity_readings)


def run_queue_ms(run: Run) -> dict[int, float]:
    """Ms a step in which each rank's training thread had no core; ranks that know it only."""
    ranks = run.cell.result.ranks if run.cell.result else ()
    return {r.rank: ms for r in ranks if (ms := r.run_queue_ms_per_step) is not None}


def contention_ms_by_rank(run: Run) -> dict[int, float]:
    """Of :func:`run_queue_ms`, what other processes caused: at least so much.

    The thread waits only while every core of its rank is taken. The rank's own other threads can
    have held all of them for no longer than their CPU time over the number of cores; what is left
    of the delay was somebody else's.
    """
    ranks = run.cell.result.ranks if run.cell.result else ()
    found = {}
    for rank in ranks:
        if rank.run_queue_ms_per_step is not None:
            own = (rank.other_threads_cpu_ms_per_step or 0.0) / max(1, len(rank.device.cores))
            found[rank.rank] = max(0.0, rank.run_queue_ms_per_step - own)
    return found


def contention_ms(run: Run) -> float:
    """The worst rank's :func:`contention_ms_by_rank`: the others wait for it. 0 if not counted."""
    return max(contention_ms_by_rank(run).values(), default=0.0)


def contention_words(contention_ms: float, step_ms: float, less: str = "less") -> str:
    """`` (less 1.5 ms without a core)``; empty below :data:`LEAST_CONTENTION_SHARE` of a step."""
    told = contention_ms > 0 and contention_ms >= LEAST_CONTENTION_SHARE * step_ms
    return f" ({less} {contention_ms:.3g} ms without a core)" if told else ""


@dataclass(frozen=True)
class StageActivity:
    """One rank of a pipeline."""

    rank: int
    parts_ms: float
    """Mean ms a step in its forwards and backwards."""
    busy_percent: float
    """Share of that time in which its SMs had work, at most: work outside of it is counted in."""
    readings: int
    """Of which it is the mean."""

    @property
    def idle_ms(self) -> float:
        """Of ``parts_ms``, what its GPU idled between kernels, at least."""
        return self.parts_ms * (1 - self.busy_percent / 100)

    @property
    def is_launch_bound(self) -> bool:
        return self.busy_percent < LAUNCH_BOUND_SM_PERCENT

    def __str__(self) -> str:
        busy = f"{self.busy_percent:.0f} % (n={self.readings})"
        return f"{busy} of {self.parts_ms:.3g} ms (rank {self.rank})"


def stage_activity(case: Case) -> tuple[StageActivity, ...]:
    """Every rank; empty without a pipeline, or where a GPU has no GPM counters.

    A mean over the GPUs, as other strategies have it, hides a stage behind the others: they differ
    in what they compute, and the slowest of them sets the pace.
    """
    anatomy = case.run.anatomy
    if pipeline_of(case.run.cell) is None or anatomy is None or case.device is None:
        return ()
    devices = {d.device.rank: d for d in case.usage()}
    found = []
    for rank in (r for r in anatomy.ranks if r.timeline == "device"):
        parts_ms, device = compute_ms(rank), devices.get(rank.rank)
        percent = device.sm_activity_percent if device else None
        if not parts_ms or device is None or percent is None or rank.step_ms is None:
            return ()
        # The counter is a mean over whole steps; nearly all work is in forwards and backwards.
        busy = min(100.0, percent * max(1.0, rank.step_ms / parts_ms))
        found.append(StageActivity(rank.rank, parts_ms, busy, device.activity_readings))
    return tuple(found)
