"""Speedups that may stand in one average: their pairs differ in the batch and in nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scalewise.analysis.comparability import differences, grouped, grouped_alike
from scalewise.analysis.scaling import Pair, is_ceiling
from scalewise.analysis.statistics import Interval, RatioEstimate, finite_exp
from scalewise.analysis.verdict import SeedLabel, Verdict, seed_label


def alike(pairs: Sequence[Pair], *free: str) -> list[list[Pair]]:
    """Sound pairs in groups that differ in the batch and in the ``free`` fields of identity alone.

    Bounds of independent models are in none. A field that is not known equals nothing.
    """
    sound = (pair for pair in pairs if not pair.invalid and not is_ceiling(pair.multi))
    return grouped_alike(
        sound, lambda a, b: not differences(a.multi.identity, b.multi.identity, "batch", free)
    )


def log_half(speedup: RatioEstimate) -> float | None:
    """Half the width of its interval on the logarithmic scale; None without an interval."""
    found = speedup.interval
    return None if found is None else (math.log(found.high) - math.log(found.low)) / 2


def global_batch(pair: Pair) -> int:
    """Samples a step of all devices of the several ones."""
    assert pair.multi.global_batch is not None, "a pair has runs"
    return pair.multi.global_batch


@dataclass(frozen=True)
class AverageSpeedup:
    """The geometric mean of speedups at several batch sizes, all else alike."""

    pairs: tuple[Pair, ...]
    """By batch, smallest first."""
    speedup: RatioEstimate
    """Its interval holds the runs' doubt at these batch sizes; it says nothing of others."""

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(map(global_batch, self.pairs))

    @property
    def seed_label(self) -> SeedLabel:
        """What the published study's rule says of the average."""
        return seed_label(self.speedup.value)

    @property
    def verdicts(self) -> dict[Verdict, list[int]]:
        """Each verdict with the batch sizes that have it."""
        found = grouped(self.pairs, lambda pair: pair.judgement.verdict)
        return {verdict: list(map(global_batch, pairs)) for verdict, pairs in found.items()}


FEWEST_BATCHES = 3
"""Batch sizes below which their rows say more than their mean."""


def average_speedups(pairs: Sequence[Pair]) -> tuple[AverageSpeedup, ...]:
    """One for each group of :data:`FEWEST_BATCHES` or more."""
    groups = [sorted(group, key=global_batch) for group in alike(pairs)]
    return tuple(AverageSpeedup(tuple(g), _mean(g)) for g in groups if len(g) >= FEWEST_BATCHES)


def _mean(pairs: Sequence[Pair]) -> RatioEstimate:
    """Of logarithms; each batch has runs of its own, so that their errors are independent."""
    count = len(pairs)
    value = math.exp(sum(math.log(p.speedup.value) for p in pairs) / count)
    runs = (min(p.speedup.n[0] for p in pairs), min(p.speedup.n[1] for p in pairs))
    halves = [half for p in pairs if (half := log_half(p.speedup)) is not None]
    if len(halves) < count:
        return RatioEstimate(value, runs, None, None)
    spread = finite_exp(math.hypot(*halves) / count)
    return RatioEstimate(value, runs, Interval(value / spread, value * spread), None)
