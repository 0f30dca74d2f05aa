"""Tests over runs: corrected for their number, and what they could have shown at all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy  # its parts load when they are first asked for: half a second that few need

from scalewise.analysis.statistics import (
    Values,
    checked_runs,
    finite_exp,
    welch_error,
)


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
