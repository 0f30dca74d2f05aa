"""How busy the cores and the SMs were: what several checks ask of a case."""

from __future__ import annotations

from dataclasses import dataclass

from scalewise.analysis.diagnosis import Case, median_compute_ms
from scalewise.analysis.run import Run

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
