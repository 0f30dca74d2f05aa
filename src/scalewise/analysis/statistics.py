"""Doubt beside the number: means and ratios over runs, with their intervals.

The samples are always runs (new process sets), never the steps inside one: steps are
correlated, and an interval over them would be far too narrow (docs/method.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import scipy

Values = Sequence[float] | npt.NDArray[np.float64]
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
        interval = self.interval and self.interval.scaled(factor)
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


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment (1979): adjusted p-values in the order given."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for position, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - position) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def holm_levels(p_values: Sequence[float], alpha: float = 0.05) -> list[float]:
    """The level at which Holm's procedure decided on each p-value, in the order given.

    Step down from ``alpha / m`` for the smallest; where the first is not rejected, none after it
    is, and all of them stand at its level. So an interval of ``1 - level`` excludes what is tested
    if and only if the adjusted p-value lies below ``alpha``.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    levels = [alpha] * len(p_values)
    stopped_at: float | None = None
    for position, i in enumerate(order):
        levels[i] = stopped_at or alpha / (len(p_values) - position)
        if p_values[i] >= levels[i]:
            stopped_at = levels[i]
    return levels


def minimum_detectable_effect(
    above: Values, below: Values, alpha: float = 0.05, power: float = 0.8
) -> float | None:
    """The smallest true ratio above 1 that as many new runs would show with this ``power``.

    Of Welch's test on logarithms, as :func:`~scalewise.analysis.statistics.estimate_ratio` makes
    it, at the two-sided level ``alpha``, which is the corrected one where the test is. So it lies
    beyond the half width of the interval of ``1 - alpha``.

    The scatter of new runs is not that of these, which is an estimate too: the power of the
    noncentral t distribution is averaged over what the estimate leaves open, its standard error
    being that of these runs times ``sqrt(df / chi2)``, with the degrees of freedom of Welch and
    Satterthwaite. Taken at its face value it would promise 80 % and keep 60 % with two runs a side
    and 67 % with three. Simulated at 5 %, it keeps 75 to 82 % with equally many runs a side,
    whether or not one side scatters three times as far as the other; of unequally many, which
    Welch's degrees of freedom flatter, less: 77 % with 3 and 5, 68 % with 2 and 5.

    None with one run on a side, and for runs that are all equal: they bound nothing.
    """
    x, y = np.log(checked_runs(above, "above")), np.log(checked_runs(below, "below"))
    if min(len(x), len(y)) < 2:
        return None
    error, df = welch_error(x, y)
    if error == 0:
        return None
    return finite_exp(_errors_to_be_seen(df, alpha, power) * error)


def detectable_effect(above: Values, below: Values, alpha: float = 0.05) -> float | None:
    """:func:`minimum_detectable_effect`; None too where it is out of reach."""
    ratio = minimum_detectable_effect(above, below, alpha)
    return None if ratio is None or ratio > LARGEST_EFFECT else ratio


LARGEST_EFFECT = 100.0
"""A ratio from which the change that runs would show is not worth a number."""

_SCATTERS = 128
"""Points at which each of two distributions of the scatter is averaged over."""


def _errors_to_be_seen(df: float, alpha: float, power: float) -> float:
    """A difference in standard errors as estimated once that is seen with ``power`` once more."""
    critical = float(scipy.stats.t.ppf(1 - alpha / 2, df))
    quantiles = (np.arange(_SCATTERS) + 0.5) / _SCATTERS
    # What is estimated of a standard error, over that error as it is: here once, and once more.
    estimated = np.sqrt(scipy.stats.chi2.ppf(quantiles, df) / df)
    once, again = estimated[:, None], estimated[None, :]

    def lack(errors: float) -> float:
        # The mean over ``again`` alone is the noncentral t distribution, which scipy's own does
        # not reach at the levels and degrees of freedom of few runs.
        seen = scipy.special.ndtr(errors * once - critical * again)
        return float(seen.mean()) - power

    most = 2 * critical + 20.0
    while lack(most) < 0:
        most *= 2
    return float(scipy.optimize.brentq(lack, 0.0, most, rtol=1e-6))
