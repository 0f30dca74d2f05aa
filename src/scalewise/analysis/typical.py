"""The speedup of the typical step beside that of all time, which long steps pull apart.

A training takes what its mean step takes, so that is what verdicts judge. Where a few long steps
make the mean, the speedup of the medians says what would be left without them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scalewise.analysis.run import Run
from scalewise.analysis.runs import Configuration
from scalewise.analysis.scaling import Pair
from scalewise.analysis.statistics import estimate_positive

WORTH_SAYING = 1.10
"""Ratio of the two speedups, either way, from which both are told."""


@dataclass(frozen=True)
class TypicalSpeedup:
    """A pair's speedup by median step times, and how far means and medians lie apart."""

    of_means: float
    of_medians: float
    """Samples of a step over its median time, geometric means over runs."""
    multi_mean_over_median: float
    """Step time on several devices; 1 where no step is long."""
    single_mean_over_median: float

    @property
    def differs(self) -> bool:
        return abs(math.log(self.of_medians / self.of_means)) > math.log(WORTH_SAYING)


def typical_speedup(pair: Pair) -> TypicalSpeedup | None:
    """Both speedups; None where a side has no step times or a median of 0 ms."""
    sides = [(_median_rate(c), _mean_over_median(c)) for c in (pair.multi, pair.single)]
    (above, multi), (below, single) = sides
    if above is None or below is None or multi is None or single is None:
        return None
    return TypicalSpeedup(pair.speedup.value, above / below, multi, single)


def _median_rate(config: Configuration) -> float | None:
    rates = [rate for run in config.runs if (rate := median_samples_per_s(run)) is not None]
    return estimate_positive(rates).value if rates else None


def _mean_over_median(config: Configuration) -> float | None:
    times = [run.throughput.step_time_ms for run in config.runs if run.throughput]
    ratios = [one.mean / one.p50 for one in times if one.p50 > 0]
    return estimate_positive(ratios).value if ratios else None


def median_samples_per_s(run: Run) -> float | None:
    """Samples of a step of all devices over the slowest rank's median step time."""
    found = run.throughput
    if found is None or found.step_time_ms.p50 <= 0:
        return None
    return found.samples / found.steps / (found.step_time_ms.p50 / 1e3)
