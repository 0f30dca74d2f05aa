"""Results that were measured elsewhere: do their own numbers agree with one another?

A throughput that was computed from the wrong batch looks like bad (or wonderful) scaling. The
step time that stands beside it gives it away: ``samples/s * seconds a step`` is the batch that
was counted, and it must be the global one.
"""

from __future__ import annotations

from scalewise.analysis.diagnosis import Diagnosis
from scalewise.records.imported import ImportedResult

__all__ = ["TOLERANCE", "ImportedResult", "check_imported"]

TOLERANCE = 0.05
"""Relative difference up to which two figures count as the same: published ones are rounded."""


def check_imported(result: ImportedResult) -> tuple[Diagnosis, ...]:
    """What the figures contradict; empty where they agree."""
    found = []
    counted, n = result.counted_batch, result.devices
    if n > 1 and _same(counted, result.global_batch_size / n):
        found.append(
            Diagnosis(
                "per-replica throughput",
                result.step_time_ms * (1 - 1 / n),
                result.step_time_ms,
                f"{result.samples_per_s:,.6g} samples/s at {result.step_time_ms:.3g} ms a step "
                f"count {counted:.4g} samples: one replica's share of a global batch of "
                f"{result.global_batch_size}; the throughput of all is {n} times higher",
                "one device with that share of the batch gives the same figure",
                invalidates=True,
            )
        )
    elif n > 1 and _same(counted, result.global_batch_size * n):
        found.append(
            Diagnosis(
                "inflated throughput",
                result.step_time_ms * (n - 1),
                result.step_time_ms,
                f"{result.samples_per_s:,.6g} samples/s at {result.step_time_ms:.3g} ms a step "
                f"count {counted:.4g} samples, {n} times the global batch: a global figure was "
                "multiplied by the devices once more",
                "the samples of an epoch over its wall time give the lower figure",
                invalidates=True,
            )
        )
    communication = result.communication_ms
    if communication is not None and communication > result.step_time_ms * (1 + TOLERANCE):
        found.append(
            Diagnosis(
                "unsynchronised timing",
                communication - result.step_time_ms,
                result.step_time_ms,
                f"{communication:.3g} ms of communication stand inside a step of "
                f"{result.step_time_ms:.3g} ms: the timer enclosed other work, or did not wait",
                "the same span timed by events on the device is no longer than the step",
                invalidates=True,
            )
        )
    return tuple(found)


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= TOLERANCE * b
