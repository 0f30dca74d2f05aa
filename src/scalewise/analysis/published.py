"""Published figures that lie beside a run's records: what they contradict in themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from scalewise.records import ImportedResult

TOLERANCE: Final = 0.05
"""Relative difference up to which two figures count as the same: published ones are rounded."""


@dataclass(frozen=True)
class Contradiction:
    """One contradiction, and what to do about it."""

    code: Literal["per_replica_throughput", "inflated_throughput", "unsynchronised_timing"]
    reason: str


def check_published(result: ImportedResult) -> tuple[Contradiction, ...]:
    """What the figures contradict; empty where they agree.

    A throughput that was computed from the wrong batch looks like bad (or wonderful) scaling. The
    step time that stands beside it gives it away: ``samples/s * seconds a step`` is the batch that
    was counted, and it must be the global one.
    """
    found = []
    counted, n = result.counted_batch, result.devices
    figures = (
        f"{result.samples_per_s:,.6g} samples/s at {result.step_time_ms:.3g} ms a step count "
        f"{counted:.4g} samples"
    )
    if n > 1 and _same(counted, result.global_batch_size / n):
        found.append(
            Contradiction(
                "per_replica_throughput",
                f"{figures}: one replica's share of a global batch of {result.global_batch_size}; "
                f"the throughput of all is {n} times higher",
            )
        )
    elif n > 1 and _same(counted, result.global_batch_size * n):
        found.append(
            Contradiction(
                "inflated_throughput",
                f"{figures}, {n} times the global batch: a global figure was multiplied by the "
                "devices once more",
            )
        )
    communication = result.communication_ms
    if communication is not None and communication > result.step_time_ms * (1 + TOLERANCE):
        found.append(
            Contradiction(
                "unsynchronised_timing",
                f"{communication:.3g} ms of communication stand inside a step of "
                f"{result.step_time_ms:.3g} ms: the timer enclosed other work, or did not wait",
            )
        )
    return tuple(found)


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= TOLERANCE * b
