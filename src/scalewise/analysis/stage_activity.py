"""How busy each stage of a pipeline keeps its GPU while it computes, one figure a stage.

A mean over the GPUs, as other strategies have it, hides a stage behind the others: they differ in
what they compute, and the slowest of them sets the pace.
"""

from __future__ import annotations

from dataclasses import dataclass

from scalewise.analysis.activity import LAUNCH_BOUND_SM_PERCENT
from scalewise.analysis.diagnosis import Case, compute_ms
from scalewise.analysis.pipeline import pipeline_of


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
    """Every rank; empty without a pipeline, or where a GPU has no GPM counters."""
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
