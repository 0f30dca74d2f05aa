"""Figures that are not to be trusted as they stand: outliers, and too few or too wild runs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scalewise.analysis.asking import for_more_runs
from scalewise.analysis.statistics import Estimate, Values, checked_runs, estimate_positive

UNSTABLE_CV = 0.05
"""Run-to-run CV from which a figure carries a warning: above it three runs cannot even settle
a difference of 10 %."""
OUTLIER_SCORE = 3.5
MIN_RUNS_FOR_OUTLIERS = 10
"""With three healthy runs a score above 3.5 turns up in 29 % of cases: it says nothing there."""


def modified_z_scores(values: Values) -> npt.NDArray[np.float64]:
    """``0.6745 (x - median) / MAD`` (Iglewicz and Hoaglin, 1993), shape ``[runs]``.

    Where more than half the runs are equal the MAD is 0; the mean absolute deviation stands in
    for it (divided by 1.2533, its ratio to sigma for normal data).
    """
    runs = checked_runs(values, "values")
    deviation = runs - np.median(runs)
    mad = float(np.median(np.abs(deviation)))
    sigma = mad / 0.6745 if mad > 0 else 1.2533 * float(np.abs(deviation).mean())
    return deviation / sigma if sigma > 0 else np.zeros_like(runs)


def outliers(values: Values) -> tuple[int, ...] | None:
    """Positions of runs with a modified Z-score beyond 3.5; None below ten runs."""
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


def stability_warning(estimate: Estimate, monitored: bool = False) -> str | None:
    """One line of warning about a figure, or None if it may be trusted as it stands.

    ``monitored`` if a script of the user's own took it, which has no ``repeats``.
    """
    if estimate.n < 2:
        more = for_more_runs(monitored, estimate.n)
        return f"one run does not tell how far others would lie from it: {more}"
    if estimate.cv is not None and estimate.cv > UNSTABLE_CV:
        return f"unstable: runs vary by {estimate.cv:.0%} (CV of {estimate.n} runs)"
    if estimate.n == 2:
        return "two runs: the interval is as wide as it is because of that"
    return None
