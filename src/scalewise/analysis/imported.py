"""Results that were measured elsewhere: do their own numbers agree with one another?

A throughput that was computed from the wrong batch looks like bad (or wonderful) scaling. The
step time that stands beside it gives it away: ``samples/s * seconds a step`` is the batch that
was counted, and it must be the global one.
"""

from __future__ import annotations

from dataclasses import dataclass

from scalewise.analysis.diagnosis import Diagnosis

TOLERANCE = 0.05
"""Relative difference up to which two figures count as the same: published ones are rounded."""


@dataclass(frozen=True)
class ImportedResult:
    """One published line. What it does not say is None."""

    devices: int
    global_batch_size: int
    step_time_ms: float
    samples_per_s: float
    """As it was published, whatever was counted."""
    communication_ms: float | None = None
    """Published communication a step."""

    def __post_init__(self) -> None:
        for name in ("devices", "global_batch_size", "step_time_ms", "samples_per_s"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name}: found {value}; allowed: above 0")

    @property
    def counted_batch(self) -> float:
        """The samples a step that the published throughput stands for."""
        return self.samples_per_s * self.step_time_ms / 1e3


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
