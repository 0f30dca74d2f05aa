"""How long the stages of a pipeline idle, beside what its schedule cannot avoid.

The schedule of a step runs from the first forward of a microbatch to the last backward. What of it
is neither forward nor backward is idle: waiting for neighbouring stages, transfers that nothing
hides, and the schedule's own bookkeeping on the host. Were all stages equal and all else free, the
bubble ``(stages - 1) / (microbatches + stages - 1)`` would be left.
"""

from __future__ import annotations

from dataclasses import dataclass

from scalewise.analysis.breakdown import Anatomy
from scalewise.analysis.cells import Cell
from scalewise.records import PipelineRecord
from scalewise.records.fed import data_shards_of


@dataclass(frozen=True)
class PipelineIdle:
    """One run."""

    schedule: PipelineRecord
    """Of the rank with the first stage."""
    bubble_share: float
    """By the formula, 0 to 1."""
    idle_share: tuple[float, ...]
    """Measured, 0 to 1, one value a rank."""
    idle_ms: tuple[float, ...]
    """Mean ms a step, one value a rank."""

    @property
    def mean_idle_share(self) -> float:
        return sum(self.idle_share) / len(self.idle_share)

    def __str__(self) -> str:
        p, m = self.schedule.stages, self.schedule.microbatches
        each = ", ".join(f"rank {r}: {share:.0%}" for r, share in enumerate(self.idle_share))
        return (
            f"{self.schedule.schedule} with {p} stages and {m} microbatches idles "
            f"{self.mean_idle_share:.0%} of its schedule ({each}); the bubble alone, "
            f"(p - 1) / (m + p - 1), is {self.bubble_share:.0%}"
        )


def pipeline_of(cell: Cell) -> PipelineRecord | None:
    """The schedule of the first rank; None where there is no pipeline."""
    return cell.result.ranks[0].pipeline if cell.result and cell.result.ranks else None


def shares_samples(cell: Cell) -> bool:
    """Whether ranks divide the model and not the batch: several of them feed the same samples."""
    shards = data_shards_of(cell.result.ranks) if cell.result else ()
    return len(set(shards)) < len(shards)


def measure_pipeline(cell: Cell, anatomy: Anatomy | None) -> PipelineIdle | None:
    """Idle time of every rank; None without a pipeline or where its phases were not timed."""
    schedule = pipeline_of(cell)
    if schedule is None or anatomy is None:
        return None
    line = anatomy.ranks[-1].timeline
    shares, idle = [], []
    for rank in (r for r in anatomy.ranks if r.timeline == line):
        forward, backward = rank.phases_ms["forward"], rank.phases_ms["backward"]
        other = rank.phases_ms["other"]
        if forward is None or backward is None or other is None:
            return None
        shares.append(other / (forward + backward + other))
        idle.append(other)
    return PipelineIdle(schedule, schedule.bubble_share, tuple(shares), tuple(idle))
