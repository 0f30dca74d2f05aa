"""What a speedup means: the verdict, and the published study's label apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import scipy

from scalewise.analysis.figures import factor, interval_words
from scalewise.analysis.model import StartedBy
from scalewise.analysis.statistics import (
    VERDICT_RUNS,
    Estimate,
    RatioEstimate,
    Values,
    checked_runs,
    look_confidence,
)
from scalewise.records import words_beside

WANTED_RUNS = 5
"""Runs that mostly settle a difference of 10 %, where runs vary by 5 %."""
MissingRuns = Literal["runs", "runs of both", "one device", "several devices"]
_WAYS: Final = words_beside(__file__, dict[MissingRuns, dict[StartedBy, str]])


def way_to_get(
    lack: MissingRuns, by: StartedBy = "sweep", *, runs: int = 0, command: str = ""
) -> str:
    """How a user gets what a figure or a comparison of so many ``runs`` lacks.

    Of ``scalewise run``, ``command`` is the one to type. A monitored script has nothing to set: its
    runs add up in one folder, so it is run again.
    """
    missing = (VERDICT_RUNS if runs < VERDICT_RUNS else WANTED_RUNS) - runs
    times = f"{missing} more time{'s' if missing > 1 else ''}" if missing > 0 else "again"
    option = f"--repeats {WANTED_RUNS}" if by == "script" else f"repeats={WANTED_RUNS}"
    first = f" ({option})" if runs < 2 else ""
    return _WAYS[lack][by].format(option=option, first=first, times=times, command=command)


Verdict = Literal["invalid", "pays", "does not pay", "undecided", "ceiling"]
SeedLabel = Literal["beneficial", "marginal", "single"]
PAYS_FROM = 1.1
"""Speedup that two devices need; N need half of N where that is more."""
MIN_EFFICIENCY = 0.5  # Share of N that the speedup of N devices is to be.
BENEFICIAL_FROM, MARGINAL_FROM = 1.1, 0.95
"""Edges of the published study's label."""


def wanted_speedup(devices: int) -> float:
    """The one edge of a verdict: several devices pay from this speedup on."""
    return max(PAYS_FROM, MIN_EFFICIENCY * devices)


LINEAR_UP_TO = 1.02
"""Efficiency up to which an interval is not called more than linear: a smaller share of the batch
that fits a cache gains a little."""


@dataclass(frozen=True)
class Judgement:
    """A verdict and why; what is empty has nothing to say."""

    verdict: Verdict
    reason: str
    """The whole sentence; the fields below are its parts, for a shorter one."""
    wanted: float
    """Speedup from which the devices pay."""
    short: str = ""
    """Why they do not: ``slower than one device``, ``3.90x where 4x is wanted of 8``."""
    more: str = ""
    """What it would take to leave the edge: ``about 4 more runs of each, 2 min``."""
    more_runs: int | None = None
    """Their number; None where it is not known, or beyond what anybody waits for."""


def judge(
    speedup: RatioEstimate,
    devices: int,
    *,
    by: StartedBy = "sweep",
    cap: int | None = None,
    round_s: float | None = None,
) -> Judgement:
    """The verdict, by the whole interval of three runs or more.

    Several devices *pay* where all of it lies at :func:`wanted_speedup` or above, and do *not pay*
    where all of it lies below. *Undecided* is what has the edge inside. What to do about it is
    worded for what started the runs, and with the ``cap`` of ``repeats=auto`` for a sweep that goes
    on by itself. A round of both sides takes ``round_s``.
    """
    wanted = wanted_speedup(devices)
    figure = f"speedup {factor(speedup.value)} on {devices} devices"
    runs, interval, to_add = min(speedup.n), speedup.interval, more_runs(speedup, wanted, cap)
    how = "at least" if runs < VERDICT_RUNS else "about"
    need = _runs_words(to_add, how, round_s) if to_add else ""
    if interval is None or runs < VERDICT_RUNS:
        todo = "" if cap else f"; {way_to_get('runs of both', by, runs=runs)}"
        few = f"{figure}, from {count_words(speedup)}: a verdict needs {VERDICT_RUNS}{todo}"
        return Judgement("undecided", few, wanted, more=need, more_runs=to_add)
    figure += f" ({interval_words(speedup)}, {count_words(speedup)})"
    decided = f"{figure}, efficiency {factor(speedup.value / devices)}"
    if interval.low >= wanted:
        return Judgement("pays", decided, wanted)
    if interval.high < wanted:
        short = _short_of(wanted, speedup, devices)
        return Judgement("does not pay", f"{decided}: {short}", wanted, short)
    # Beyond the runs wanted at first, a script is to be run again, not so many times more.
    todo = way_to_get("runs of both", by, runs=max(runs, WANTED_RUNS))
    least = interval.low
    # Rounded away from the interval, so that what is said holds of all of it.
    certain = f"; at least {factor(math.floor(round(100 * least, 9)) / 100)} times as fast"
    told = f"{factor(wanted)}x is wanted{certain if least >= 1 else ''}"
    if to_add is None and (cap is None or runs < cap):
        need = f"more than {f'the {cap} runs allowed' if cap else f'{MOST_MORE} more runs'} of each"
    end = ": ".join(filter(None, ("" if cap else todo, need)))
    said = "; ".join(filter(None, (f"{figure}: {told}", end)))
    return Judgement("undecided", said, wanted, more=need, more_runs=to_add)


def _short_of(wanted: float, speedup: RatioEstimate, devices: int) -> str:
    """What several devices lack whose whole interval lies below ``wanted``."""
    assert speedup.interval is not None
    if speedup.interval.high < 1:
        return "slower than one device"
    if speedup.interval.low <= 1 and speedup.value < PAYS_FROM:
        return f"no gain, {factor(wanted)}x is wanted"
    return f"{factor(speedup.value)}x where {factor(wanted)}x is wanted of {devices}"


def count_words(ratio: RatioEstimate) -> str:
    """``3 pairs``, one of each round; or ``3 and 4 runs`` where they share none."""
    if ratio.paired:
        return f"{ratio.n[0]} pair{'s' if ratio.n[0] > 1 else ''}"
    return f"{ratio.n[0]} and {ratio.n[1]} runs"


MOST_MORE = 50
"""More runs than this nobody waits for: they are called that, and not counted."""


def more_runs(ratio: RatioEstimate, edge: float, cap: int | None = None) -> int | None:
    """Runs of each side to add until there is a verdict, or the interval leaves out ``edge``.

    The latter as if the point and the scatter stayed what they are, so that it is too few about as
    often as too many. At 95 %, and up to :data:`WANTED_RUNS` at least; for ``repeats=auto``, which
    goes on by itself, with its ``cap`` and at the level of its looks. None beyond
    :data:`MOST_MORE`, or beyond the cap.
    """
    runs = min(ratio.n)
    if runs < VERDICT_RUNS:
        return VERDICT_RUNS - runs
    if ratio.log_error is None or ratio.df is None:
        return None
    confidence = 0.95 if cap is None else look_confidence()
    least = runs + 1 if cap else max(runs + 1, WANTED_RUNS)
    for n in range(least, min(runs + MOST_MORE, cap or runs + MOST_MORE) + 1):
        df = ratio.df * (n - 1) / (runs - 1)
        half = scipy.stats.t.ppf(0.5 + confidence / 2, df) * ratio.log_error * math.sqrt(runs / n)
        if half < abs(math.log(ratio.value / edge)):
            return n - runs
    return None


def _runs_words(more: int, how: str, round_s: float | None) -> str:
    time = "" if round_s is None else f", {rounded_duration(more * round_s)}"
    return f"{how} {more} more run{'s' if more > 1 else ''} of each{time}"


def rounded_duration(seconds: float) -> str:
    """To one figure that says how long to wait."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def seed_label(speedup: float) -> SeedLabel:
    """The published study's label, from the point estimate whatever the number of devices."""
    if speedup >= BENEFICIAL_FROM:
        return "beneficial"
    return "marginal" if speedup >= MARGINAL_FROM else "single"


UNSTABLE_CV = 0.05
"""Run-to-run CV from which a figure carries a warning: above it three runs cannot even settle
a difference of 10 %."""
OUTLIER_SCORE = 3.5  # Modified z-score beyond which a run is called an outlier.
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


def stability_warning(figure: Estimate, by: StartedBy = "sweep") -> str | None:
    """One line of warning about a figure, or None if it may be trusted as it stands.

    What to do about it is worded for what started its runs.
    """
    if figure.n < 2:
        more = way_to_get("runs", by, runs=figure.n)
        return f"one run does not tell how far others would lie from it: {more}"
    if figure.cv is not None and figure.cv > UNSTABLE_CV:
        return f"unstable: runs vary by {figure.cv:.0%} (CV of {figure.n} runs)"
    return "two runs: the interval is as wide as it is because of that" if figure.n == 2 else None
