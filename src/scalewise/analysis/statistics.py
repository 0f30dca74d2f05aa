"""Doubt beside the number: means and ratios over runs, with their intervals.

The samples are always runs (freshly started process sets), never the steps inside one: steps are
correlated, and an interval over them would be far too narrow (docs/method.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import scipy  # its parts load when they are first asked for: half a second that few need

Values = Sequence[float] | npt.NDArray[np.float64]
_LARGEST_LOG = 700.0


@dataclass(frozen=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float
    confidence: float = 0.95

    def inside(self, low: float, high: float) -> bool:
        return low <= self.low and self.high <= high


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
        interval = self.interval and Interval(
            self.interval.low * factor, self.interval.high * factor, self.interval.confidence
        )
        sd = None if self.sd is None else self.sd * factor
        mean = None if self.arithmetic_mean is None else self.arithmetic_mean * factor
        return Estimate(self.value * factor, self.n, sd, interval, mean)


@dataclass(frozen=True)
class RatioEstimate:
    """A ratio of two sets of runs, with its doubt."""

    value: float
    """Ratio of the geometric means."""
    n: tuple[int, int]
    """Runs above and below the line."""
    interval: Interval | None
    p_value: float | None
    """Two-sided Welch test on logs that the ratio is 1; None if a side has one run."""

    def scaled(self, factor: float) -> RatioEstimate:
        """The ratio times a known number (speedup to efficiency: ``1 / devices``).

        The p-value belongs to the unscaled ratio and is dropped.
        """
        interval = self.interval and Interval(
            self.interval.low * factor, self.interval.high * factor, self.interval.confidence
        )
        return RatioEstimate(self.value * factor, self.n, interval, None)


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

    For times, rates, bytes and joules, which are positive and vary by factors: few runs that
    scatter widely give a wide interval, and never one below zero. A ratio of two such means is
    the one of :func:`estimate_ratio`, and the mean of times is the inverse of the mean of rates.
    It lies about ``CV^2 / 2`` below the arithmetic mean. Raises ValueError if a value is not
    positive.
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


def estimate_ratio(above: Values, below: Values, confidence: float = 0.95) -> RatioEstimate:
    """``above / below`` with a log-normal interval: Welch's t on the logarithms, exponentiated.

    Why not Fieller: throughputs are positive and vary multiplicatively (clocks, neighbours,
    caches), so their logs are nearer to normal; the interval is always positive and finite
    (Fieller's becomes the whole line when few runs make the denominator uncertain); and A/B and
    B/A give the same answer turned over. Its price: it estimates the ratio of geometric means,
    which lies CV^2/2 from that of the arithmetic ones only if the two CVs differ.
    Raises ValueError if a value is not positive.
    """
    a, b = checked_runs(above, "above"), checked_runs(below, "below")
    if (a <= 0).any() or (b <= 0).any():
        raise ValueError("a ratio interval needs positive values on both sides")
    log_a, log_b = np.log(a), np.log(b)
    difference = float(log_a.mean() - log_b.mean())
    value, n = math.exp(difference), (len(a), len(b))
    if min(n) < 2:
        return RatioEstimate(value, n, None, None)
    error, df = welch_error(log_a, log_b)
    half = float(scipy.stats.t.ppf(0.5 + confidence / 2, df)) * error
    low, high = finite_exp(difference - half), finite_exp(difference + half)
    interval = Interval(low, high, confidence)
    return RatioEstimate(value, n, interval, two_sided_p(difference, error, df))


def finite_exp(logarithm: float) -> float:
    """``exp``, held between 1e-304 and 1e304: two runs a side at a level corrected for many tests
    have intervals that no number holds, and either end of them bounds nothing."""
    return math.exp(min(max(logarithm, -_LARGEST_LOG), _LARGEST_LOG))


def checked_runs(values: Values, name: str, at_least: int = 1) -> npt.NDArray[np.float64]:
    """The values of runs, shape ``[runs]``. Raises ValueError for too few, or one not finite."""
    runs = np.asarray(values, dtype=np.float64)
    if runs.ndim != 1 or len(runs) < at_least or not np.isfinite(runs).all():
        raise ValueError(f"{name}: found {runs!r}; allowed: {at_least} or more finite numbers")
    return runs


def welch_error(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Standard error of the difference of means, and Welch-Satterthwaite degrees of freedom."""
    va, vb = float(a.var(ddof=1)) / len(a), float(b.var(ddof=1)) / len(b)
    if va + vb == 0:
        return 0.0, float(len(a) + len(b) - 2)
    df = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return math.sqrt(va + vb), df


def two_sided_p(difference: float, error: float, df: float) -> float:
    """Of Student's t: that a difference of means with this standard error is none."""
    if error == 0:
        return 1.0 if difference == 0 else 0.0
    return float(2 * scipy.stats.t.sf(abs(difference) / error, df))
