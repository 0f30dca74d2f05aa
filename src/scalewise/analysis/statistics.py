"""Doubt beside the number: means and ratios over runs, with their intervals.

The samples are always runs (new process sets), never the steps inside one: steps are
correlated, and an interval over them would be far too narrow (docs/method.md). Data may be looked
at after every round without being fooled by it (:func:`look_confidence`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import scipy

Values = Sequence[float] | npt.NDArray[np.float64]
Runs = Values | Mapping[int, float]
"""Values of runs; by the number of their round where they ran in rounds."""
_LARGEST_LOG = 700.0


@dataclass(frozen=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float
    confidence: float = 0.95

    def scaled(self, factor: float) -> Interval:
        """The interval of a quantity times a known positive number."""
        return Interval(self.low * factor, self.high * factor, self.confidence)


@dataclass(frozen=True)
class Estimate:
    """A figure over runs, with its doubt."""

    value: float
    """Mean over runs: the geometric one of positive quantities."""
    n: int
    sd: float | None
    """Sample standard deviation over runs, in the unit of ``value``; None for one run."""
    interval: Interval | None
    """None for one run: missing, not of zero width."""
    arithmetic_mean: float | None = None
    """Over runs, where ``value`` is another mean: the one that ``sd`` belongs to."""

    @property
    def cv(self) -> float | None:
        """Run-to-run coefficient of variation, a fraction: of positive runs ``sqrt(n)`` at most."""
        mean = self.value if self.arithmetic_mean is None else self.arithmetic_mean
        return None if self.sd is None or mean == 0 else self.sd / abs(mean)

    def scaled(self, factor: float) -> Estimate:
        """The figure in another unit: times a known positive number."""
        interval = self.interval and self.interval.scaled(factor)
        sd = None if self.sd is None else self.sd * factor
        mean = None if self.arithmetic_mean is None else self.arithmetic_mean * factor
        return Estimate(self.value * factor, self.n, sd, interval, mean)


@dataclass(frozen=True)
class RatioEstimate:
    """A ratio of two sets of runs, with its doubt."""

    value: float
    """Geometric mean of the ratios of pairs; unpaired the ratio of the geometric means."""
    n: tuple[int, int]
    """Runs above and below the line that are in ``value``; of pairs as many on both sides."""
    interval: Interval | None
    p_value: float | None
    """Two-sided, that the ratio is 1, by the test of the interval; None if a side has one run."""
    paired: bool = False
    """Whether it is taken within rounds (Student's t of pairs), else of two samples (Welch's)."""
    log_error: float | None = None
    """Standard error of its logarithm; None if a side has one run."""
    df: float | None = None

    def is_above(self, level: float) -> bool:
        """Whether its whole interval lies above ``level``; not without an interval."""
        return self.interval is not None and self.interval.low > level

    def scaled(self, factor: float) -> RatioEstimate:
        """The ratio times a known number, without the p-value of what it was."""
        interval = self.interval and self.interval.scaled(factor)
        return replace(self, value=self.value * factor, interval=interval, p_value=None)

    def inverted(self) -> RatioEstimate:
        """What was below the line over what was above it; the test that it is 1 stays."""
        found = self.interval
        interval = found and Interval(1 / found.high, 1 / found.low, found.confidence)
        return replace(self, value=1 / self.value, n=self.n[::-1], interval=interval)


def estimate_mean(values: Values, confidence: float = 0.95) -> Estimate:
    """Mean of runs with its t interval. Raises ValueError for no runs at all."""
    runs = checked_runs(values, "values")
    mean, n = float(runs.mean()), len(runs)
    if n < 2:
        return Estimate(mean, n, None, None)
    sd = float(runs.std(ddof=1))
    half = float(scipy.stats.t.ppf(0.5 + confidence / 2, n - 1)) * sd / math.sqrt(n)
    return Estimate(mean, n, sd, Interval(mean - half, mean + half, confidence))


def estimate_positive(values: Values, confidence: float = 0.95) -> Estimate:
    """Geometric mean of runs, with Student's t interval of the logarithms, exponentiated.

    For times, rates, bytes and joules, which are positive and vary by factors. A ratio of two such
    means is the one of :func:`estimate_ratio`, and the mean of times is the inverse of the mean of
    rates. Raises ValueError if a value is not positive.
    """
    runs = checked_runs(values, "values")
    if (runs <= 0).any():
        raise ValueError("an interval on a logarithmic scale needs positive values")
    logs = estimate_mean(np.log(runs), confidence)
    interval = logs.interval and Interval(
        math.exp(logs.interval.low), math.exp(logs.interval.high), confidence
    )
    sd = float(runs.std(ddof=1)) if len(runs) > 1 else None
    return Estimate(math.exp(logs.value), len(runs), sd, interval, float(runs.mean()))


def estimate_not_negative(values: Values, confidence: float = 0.95) -> Estimate:
    """Mean of runs with its t interval, cut at 0: for shares and CVs, which may well be 0.

    What is cut off cannot be true, so the interval covers no less than before.
    """
    whole = estimate_mean(values, confidence)
    if whole.interval is None:
        return whole
    return replace(whole, interval=replace(whole.interval, low=max(whole.interval.low, 0.0)))


def estimate_runs(values: Values) -> Estimate:
    """Geometric, as all means of positive runs; where one is 0 as :func:`estimate_not_negative`."""
    return (estimate_positive if min(values) > 0 else estimate_not_negative)(values)


def estimate_ratio(above: Runs, below: Runs, confidence: float = 0.95) -> RatioEstimate:
    """``above / below`` with Student's t interval of logarithms, exponentiated.

    Rounds are blocks: where both sides have rounds in common, the ratio is taken within each of
    them, and over rounds with n - 1 degrees of freedom. What a round's halves share, as a busy
    host, cancels. Where they have none, it is Welch's of two samples.

    Not Fieller's: throughputs are positive and vary multiplicatively, so that their logs are nearer
    to normal, and A/B and B/A give the same answer turned over. Raises ValueError if a value is not
    positive.
    """
    a, b, paired = in_pairs(above, below)
    if (a <= 0).any() or (b <= 0).any():
        raise ValueError("a ratio interval needs positive values on both sides")
    log_a, log_b = np.log(a), np.log(b)
    difference = float(log_a.mean() - log_b.mean())
    value, n = math.exp(difference), (len(a), len(b))
    if min(n) < 2:
        return RatioEstimate(value, n, None, None, paired)
    if paired:
        error, df = float(np.std(log_a - log_b, ddof=1)) / math.sqrt(len(a)), len(a) - 1.0
    else:
        error, df = welch_error(log_a, log_b)
    half = float(scipy.stats.t.ppf(0.5 + confidence / 2, df)) * error
    low, high = finite_exp(difference - half), finite_exp(difference + half)
    interval = Interval(low, high, confidence)
    p_value = float(difference == 0)
    if error:
        p_value = float(2 * scipy.stats.t.sf(abs(difference) / error, df))
    return RatioEstimate(value, n, interval, p_value, paired, error, df)


def estimate_difference(above: Runs, below: Runs) -> Estimate:
    """``above - below``, of values of any sign: within common rounds, else Welch's."""
    a, b, paired = in_pairs(above, below)
    if paired:
        return estimate_mean(a - b)
    value, n = float(a.mean() - b.mean()), min(len(a), len(b))
    if n < 2:
        return Estimate(value, n, None, None)
    error, df = welch_error(a, b)
    half = float(scipy.stats.t.ppf(0.975, df)) * error
    return Estimate(value, n, None, Interval(value - half, value + half))


def in_pairs(
    above: Runs, below: Runs
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], bool]:
    """Both sides by the rounds they have in common, and whether there are any; else all runs."""
    sides = (above, below)
    by_round = [side for side in sides if isinstance(side, Mapping)]
    common = sorted(set.intersection(*map(set, by_round))) if len(by_round) == 2 else []
    if common:
        values: list[Values] = [[side[number] for number in common] for side in by_round]
    else:
        values = [list(side.values()) if isinstance(side, Mapping) else side for side in sides]
    a, b = checked_runs(values[0], "above"), checked_runs(values[1], "below")
    return a, b, bool(common)


def finite_exp(logarithm: float) -> float:
    """``exp``, held between 1e-304 and 1e304: two runs a side at a level corrected for many tests
    have intervals that no number holds, and either end of them bounds nothing."""
    return math.exp(min(max(logarithm, -_LARGEST_LOG), _LARGEST_LOG))


def checked_runs(values: Values, name: str) -> npt.NDArray[np.float64]:
    """The values of runs, shape ``[runs]``. Raises ValueError for none, or one not finite."""
    runs = np.asarray(values, dtype=np.float64)
    if runs.ndim != 1 or not len(runs) or not np.isfinite(runs).all():
        raise ValueError(f"{name}: found {runs!r}; allowed: 1 or more finite numbers")
    return runs


def welch_error(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Standard error of the difference of means, and Welch-Satterthwaite degrees of freedom."""
    va, vb = float(a.var(ddof=1)) / len(a), float(b.var(ddof=1)) / len(b)
    if va + vb == 0:
        return 0.0, float(len(a) + len(b) - 2)
    return math.sqrt(va + vb), (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))


def bonferroni(comparisons: int) -> float:
    """The confidence of each of several intervals that together are wrong as rarely as one at 95 %.

    For a choice among many, where one wrong line makes the answer wrong. By Holm's steps the
    interval of a row would depend on all other rows.
    """
    return 1 - (1 - 0.95) / max(1, comparisons)


VERDICT_RUNS: Final = 3
"""Pairs of runs, or runs a side, below which nothing is decided: two that agree by chance give an
interval that covers the truth far less often than it says where runs are slow now and then."""
ENOUGH: Final = {f"repeats={few}": f"repeats={VERDICT_RUNS}" for few in range(1, VERDICT_RUNS)}
"""Words of a command that decides nothing, and what to type in their place."""
CAP: Final = 20  # Runs of a configuration under ``repeats=auto`` at most.
PRECISION: Final = 0.02  # Half width of the interval at which they are enough.
_SHARE_OF_A_LOOK: Final = 0.2  # Of the error of 5 % that each look at the runs may spend.


@dataclass(frozen=True)
class Adaptive:
    """What a configuration with ``repeats=auto`` asked for."""

    precision: float
    """Width of the interval, relative, at which enough is known."""
    cap: int


def adaptive(config: Mapping[str, Any] | None) -> Adaptive | None:
    """The limits of a configuration that leaves its repeats to the data; None for any other."""
    if config is None or config.get("repeats") != "auto":
        return None
    percent, cap = config.get("precision_percent"), config.get("max_repeats")
    return Adaptive(PRECISION if percent is None else percent / 100, CAP if cap is None else cap)


def look_confidence(confidence: float = 0.95) -> float:
    """Confidence of the interval of one look, so that all looks together hold ``confidence``.

    Each look is another chance to be fooled, so each spends a fifth of the error, 1 %: from the
    third round to the twentieth the interval at the stop then covers the truth in 97 of 100
    simulated cases, and in 93 where the truth is the edge itself (docs/statistics.md). No schedule
    has to be kept. What no rule can correct is noise that strikes only one side.
    """
    return 1 - _SHARE_OF_A_LOOK * (1 - confidence)


def estimate_at(multi: Runs, single: Runs, confidence: float = 0.95) -> RatioEstimate:
    """The ratio of data that are looked at after every round: over all looks it holds so often."""
    look = estimate_ratio(multi, single, look_confidence(confidence))
    return replace(look, interval=look.interval and replace(look.interval, confidence=confidence))
