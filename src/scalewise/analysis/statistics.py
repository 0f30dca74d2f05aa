"""Doubt beside the number: intervals, tests and warnings over runs.

The samples are always runs (freshly started process sets), never the steps inside one: steps are
correlated, and an interval over them would be far too narrow (DESIGN, law 4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt
import scipy  # its parts load when they are first asked for: half a second that few need

UNSTABLE_CV = 0.05
"""Run-to-run CV from which a figure carries a warning: above it three runs cannot even settle
a difference of 10 %."""
OUTLIER_SCORE = 3.5
MIN_RUNS_FOR_OUTLIERS = 10
"""With three healthy runs a score above 3.5 turns up in 29 % of cases: it says nothing there."""

Values = Sequence[float] | npt.NDArray[np.float64]


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

    @property
    def cv(self) -> float | None:
        """Run-to-run coefficient of variation, a fraction."""
        return None if self.sd is None or self.value == 0 else self.sd / abs(self.value)


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


@dataclass(frozen=True)
class TestResult:
    """A two-sided test."""

    __test__ = False  # not a test case, whatever pytest makes of the name

    statistic: float
    p_value: float
    df: float | None = None


def estimate_mean(values: Values, confidence: float = 0.95) -> Estimate:
    """Mean of runs with its t interval. Raises ValueError for no runs at all."""
    runs = _runs(values, "values")
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
    runs = _runs(values, "values")
    if (runs <= 0).any():
        raise ValueError("an interval on a logarithmic scale needs positive values")
    logs = estimate_mean(np.log(runs), confidence)
    interval = logs.interval and Interval(
        math.exp(logs.interval.low), math.exp(logs.interval.high), confidence
    )
    sd = float(runs.std(ddof=1)) if len(runs) > 1 else None
    return Estimate(math.exp(logs.value), len(runs), sd, interval)


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
    a, b = _runs(above, "above"), _runs(below, "below")
    if (a <= 0).any() or (b <= 0).any():
        raise ValueError("a ratio interval needs positive values on both sides")
    log_a, log_b = np.log(a), np.log(b)
    difference = float(log_a.mean() - log_b.mean())
    value, n = math.exp(difference), (len(a), len(b))
    if min(n) < 2:
        return RatioEstimate(value, n, None, None)
    error, df = _welch_error(log_a, log_b)
    half = float(scipy.stats.t.ppf(0.5 + confidence / 2, df)) * error
    interval = Interval(math.exp(difference - half), math.exp(difference + half), confidence)
    return RatioEstimate(value, n, interval, _two_sided_p(difference, error, df))


def welch_test(a: Values, b: Values) -> TestResult:
    """Welch's two-sided t test of equal means (unequal variances). Needs two runs a side."""
    x, y = _runs(a, "a", at_least=2), _runs(b, "b", at_least=2)
    error, df = _welch_error(x, y)
    difference = float(x.mean() - y.mean())
    statistic = difference / error if error > 0 else math.copysign(math.inf, difference)
    if difference == 0:
        statistic = 0.0
    return TestResult(statistic, _two_sided_p(difference, error, df), df)


def permutation_test(a: Values, b: Values, permutations: int = 10_000, seed: int = 0) -> TestResult:
    """Two-sided permutation test of equal means; assumes no distribution.

    Exact where the runs can be split in at most ``permutations`` ways; else that many seeded
    random splits, the observed one counted among them (Phipson and Smyth, 2010). With n runs
    a side p cannot fall below ``2 / C(2n, n)``: three against three never reach 0.05.
    """
    x, y = _runs(a, "a"), _runs(b, "b")
    pooled, n = np.concatenate([x, y]), len(x)
    observed = float(x.mean() - y.mean())
    exact = math.comb(len(pooled), n) <= permutations
    if exact:
        chosen = np.array(list(combinations(range(len(pooled)), n)))
    else:
        order = np.random.default_rng(seed).random((permutations, len(pooled)))
        chosen = np.argpartition(order, n - 1, axis=1)[:, :n]
    sums = pooled[chosen].sum(axis=1)
    differences = sums / n - (pooled.sum() - sums) / len(y)
    # Splits that tie with the observed one must count whatever the last bit says.
    tolerance = 1e-12 * max(float(np.abs(pooled).max()), 1e-300)
    as_extreme = int((np.abs(differences) >= abs(observed) - tolerance).sum())
    p = as_extreme / len(chosen) if exact else (as_extreme + 1) / (permutations + 1)
    return TestResult(observed, p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment (1979): adjusted p-values in the order given."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for position, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - position) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def effect_size(a: Values, b: Values) -> float | None:
    """Hedges' g: difference of means in pooled standard deviations, corrected for few runs.

    None if either side has one run or nothing varies.
    """
    x, y = _runs(a, "a"), _runs(b, "b")
    df = len(x) + len(y) - 2
    if min(len(x), len(y)) < 2:
        return None
    pooled = ((len(x) - 1) * x.var(ddof=1) + (len(y) - 1) * y.var(ddof=1)) / df
    if pooled == 0:
        return None
    return float((x.mean() - y.mean()) / math.sqrt(pooled) * (1 - 3 / (4 * df - 1)))


def modified_z_scores(values: Values) -> npt.NDArray[np.float64]:
    """``0.6745 (x - median) / MAD`` (Iglewicz and Hoaglin, 1993), shape ``[runs]``.

    Where more than half the runs are equal the MAD is 0; the mean absolute deviation stands in
    for it (divided by 1.2533, its ratio to sigma for normal data).
    """
    runs = _runs(values, "values")
    deviation = runs - np.median(runs)
    mad = float(np.median(np.abs(deviation)))
    sigma = mad / 0.6745 if mad > 0 else 1.2533 * float(np.abs(deviation).mean())
    return deviation / sigma if sigma > 0 else np.zeros_like(runs)


def outliers(values: Values) -> tuple[int, ...] | None:
    """Positions of runs with a modified Z-score beyond 3.5; None below ten runs (law 4)."""
    if len(values) < MIN_RUNS_FOR_OUTLIERS:
        return None
    return tuple(int(i) for i in np.flatnonzero(np.abs(modified_z_scores(values)) > OUTLIER_SCORE))


def estimate_without_outliers(values: Values, confidence: float = 0.95) -> Estimate | None:
    """The mean of a positive quantity without flagged runs, to stand *beside* that of all.

    None if none is flagged.
    """
    flagged = outliers(values)
    if not flagged:
        return None
    return estimate_positive([v for i, v in enumerate(values) if i not in flagged], confidence)


def minimum_detectable_effect(
    cv: float, n_a: int, n_b: int, power: float = 0.8, alpha: float = 0.05
) -> float | None:
    """The smallest true ratio above 1 that these runs would find different from 1.

    ``cv`` is the run-to-run CV of both sides (a fraction; near enough the standard deviation of
    the logs). From the noncentral t distribution. None with one run on a side.
    """
    if min(n_a, n_b) < 2:
        return None
    sigma = math.sqrt(math.log1p(cv**2))
    error, df = sigma * math.sqrt(1 / n_a + 1 / n_b), n_a + n_b - 2
    if error == 0:
        return 1.0
    critical = float(scipy.stats.t.ppf(1 - alpha / 2, df))

    def lack(noncentrality: float) -> float:
        found = scipy.stats.nct.sf(critical, df, noncentrality)
        return float(found) - power

    return math.exp(float(scipy.optimize.brentq(lack, 0.0, critical + 20.0)) * error)


def stability_warning(estimate: Estimate) -> str | None:
    """One line of warning about a figure, or None if it may be trusted as it stands."""
    if estimate.n < 2:
        return "one run: its doubt is unknown, repeat it (repeats=5)"
    if estimate.cv is not None and estimate.cv > UNSTABLE_CV:
        return f"unstable: runs vary by {estimate.cv:.0%} (CV of {estimate.n} runs)"
    if estimate.n == 2:
        return "two runs: the interval is as wide as it is because of that"
    return None


def _runs(values: Values, name: str, at_least: int = 1) -> npt.NDArray[np.float64]:
    runs = np.asarray(values, dtype=np.float64)
    if runs.ndim != 1 or len(runs) < at_least or not np.isfinite(runs).all():
        raise ValueError(f"{name}: found {runs!r}; allowed: {at_least} or more finite numbers")
    return runs


def _welch_error(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Standard error of the difference of means, and Welch-Satterthwaite degrees of freedom."""
    va, vb = float(a.var(ddof=1)) / len(a), float(b.var(ddof=1)) / len(b)
    if va + vb == 0:
        return 0.0, float(len(a) + len(b) - 2)
    df = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return math.sqrt(va + vb), df


def _two_sided_p(difference: float, error: float, df: float) -> float:
    if error == 0:
        return 1.0 if difference == 0 else 0.0
    return float(2 * scipy.stats.t.sf(abs(difference) / error, df))
