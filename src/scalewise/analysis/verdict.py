"""What a speedup means: the verdict, and the published study's label apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy

from scalewise.analysis.labels import bounds_nothing, estimate, factor, interval_words
from scalewise.analysis.statistics import (
    Estimate,
    Interval,
    RatioEstimate,
    Runs,
    Values,
    checked_runs,
    estimate_positive,
    estimate_ratio,
    in_pairs,
)

WANTED_RUNS = 5
"""Runs that mostly settle a difference of 10 %, where runs vary by 5 %."""

VERDICT_RUNS = 3
"""Pairs of runs, or runs a side, below which nothing is decided: two that agree by chance give an
interval that covers the truth far less often than it says where runs are slow now and then."""


Lack = Literal["runs", "runs of both", "one device", "several devices"]


def way_to_get(lack: Lack, *, monitored: bool, runs: int = 0) -> str:
    """How a user gets what a figure or a comparison of so many ``runs`` lacks.

    A script under the Monitor callback has neither ``repeats`` nor ``strategy`` to set. Its runs
    add up in one folder, so it is run again.
    """
    missing = WANTED_RUNS - runs
    times = f"{missing} more time{'s' if missing > 1 else ''}" if missing > 0 else "again"
    repeats = f" (repeats={WANTED_RUNS})" if runs < 2 else ""
    in_sweep, in_script = {
        "runs": (
            f"repeat it (repeats={WANTED_RUNS})",
            f"run the script {times} into the same folder",
        ),
        "runs of both": (
            f"add repeats{repeats}",
            f"run the script {times} on each number of devices, into the same folder",
        ),
        "one device": (
            "no single-device cell in this sweep: add strategy=single",
            "no run on one device in this folder: run the script on one too",
        ),
        "several devices": (
            "add strategy=single,ddp for a verdict",
            "run the script on several too, into the same folder, for a verdict",
        ),
    }[lack]
    return in_script if monitored else in_sweep


Verdict = Literal["invalid", "beneficial", "marginal", "prefer single", "undecided", "ceiling"]
SeedLabel = Literal["beneficial", "marginal", "single"]
BENEFICIAL_FROM = 1.1
MARGINAL_FROM = 0.95
MIN_EFFICIENCY = 0.5


@dataclass(frozen=True)
class Judgement:
    """A verdict and why."""

    verdict: Verdict
    reason: str
    asked: str = ""
    """The edge that is open, or that decided: ``2.00x is asked for``."""
    certain: str = ""
    """What holds for the whole interval of one that is undecided."""
    open: str = ""
    """What its interval leaves open."""
    more: str = ""
    """Runs that would probably decide it: ``about 4 more runs of each, 2 min``."""
    more_runs: int | None = None
    """Their number; None where it is not known, or beyond what anybody waits for."""


def judge(
    speedup: RatioEstimate,
    devices: int,
    min_efficiency: float = MIN_EFFICIENCY,
    *,
    monitored: bool = False,
    cap: int | None = None,
    round_s: float | None = None,
) -> Judgement:
    """The verdict, which needs the whole interval inside one band, of three runs or more.

    Bands of the speedup: *prefer single* below 0.95; *marginal* from there to 1.1, and beyond
    while the efficiency stays under ``min_efficiency``; *beneficial* above both. What to do about
    an undecided one is worded for a sweep, with ``monitored`` for a script of one's own, and
    with the ``cap`` of ``repeats=auto`` for a sweep that goes on by itself. A round of both sides
    takes ``round_s``.
    """
    wanted = max(BENEFICIAL_FROM, min_efficiency * devices)
    figure = f"speedup {factor(speedup.value)} on {devices} devices"
    runs, low, high = min(speedup.n), 0.0, math.inf
    if speedup.interval is not None:
        low, high = speedup.interval.low, speedup.interval.high
    if runs < VERDICT_RUNS:
        more = "" if cap else f"; {way_to_get('runs of both', monitored=monitored, runs=runs)}"
        few = f"{figure}, from {count_words(speedup)}: a verdict needs {VERDICT_RUNS}{more}"
        return Judgement("undecided", few, f"a verdict needs {VERDICT_RUNS} runs of each")
    efficiency = factor(speedup.value / devices)
    figure += f" ({interval_words(speedup)}, {count_words(speedup)}), efficiency {efficiency}"
    if low > BENEFICIAL_FROM and low >= wanted:
        return Judgement("beneficial", figure)
    if high < MARGINAL_FROM:
        return Judgement("prefer single", f"{figure}: slower than one device")
    if low >= MARGINAL_FROM and high <= wanted:
        if low > BENEFICIAL_FROM:
            figure += f": faster, but below the efficiency of {min_efficiency:g} asked for"
        return Judgement("marginal", figure, f"{factor(wanted)}x is asked for")
    why = f"speedup {factor(speedup.value)}: {_spans(speedup, low, high, wanted)}"
    # Beyond the runs wanted at first, a script is to be run again, not so many times more.
    todo = way_to_get("runs of both", monitored=monitored, runs=max(runs, WANTED_RUNS))
    edges = [edge for edge in (MARGINAL_FROM, wanted) if low <= edge <= high]
    need = more_runs_words(speedup, edges, cap, round_s)
    told = [part for part in ("" if cap else todo, need) if part]
    nearest = min(edges, key=lambda edge: abs(math.log(speedup.value / edge)))
    return Judgement(
        "undecided",
        ": ".join([f"{why}, {count_words(speedup)}", *told]),
        asked="one device may be as fast"
        if nearest == MARGINAL_FROM
        else f"{factor(nearest)}x is asked for",
        certain=f"at least {factor(low)} times as fast" if low > 1 else "",
        more=need,
        more_runs=more_runs(speedup, nearest, cap),
    )


def count_words(ratio: RatioEstimate) -> str:
    """``3 pairs``, one of each round; or ``3 and 4 runs`` where they share none."""
    if ratio.paired:
        return f"{ratio.n[0]} pair{'s' if ratio.n[0] > 1 else ''}"
    return f"{ratio.n[0]} and {ratio.n[1]} runs"


MOST_MORE = 50
"""More runs than this nobody waits for: they are called that, and not counted."""


def more_runs(ratio: RatioEstimate, edge: float, cap: int | None = None) -> int | None:
    """Runs of each side to add until the interval is expected to leave out ``edge``.

    As if the point and the scatter stayed what they are, so that it is too few about as often as
    too many. At 95 %, or at the looks and levels of ``repeats=auto`` with this ``cap``. None
    beyond :data:`MOST_MORE`, beyond the cap, or where two runs a side are not there.
    """
    runs = min(ratio.n)
    if ratio.log_error is None or ratio.df is None:
        return None
    later = range(runs + 1, runs + MOST_MORE + 1)
    for n in later if cap is None else (look for look in schedule(cap) if look > runs):
        level = 0.05 if cap is None else nominal_level(n, cap=cap)
        df = ratio.df * (n - 1) / (runs - 1)
        half = scipy.stats.t.ppf(1 - level / 2, df) * ratio.log_error * math.sqrt(runs / n)
        if half < abs(math.log(ratio.value / edge)):
            return n - runs
    return None


def more_runs_words(
    ratio: RatioEstimate, edges: Sequence[float], cap: int | None, round_s: float | None
) -> str:
    """``about 4 more runs of each, 2 min``, against the nearest of ``edges``; empty at the cap."""
    if cap is not None and min(ratio.n) >= cap:
        return ""
    nearest = min(edges, key=lambda edge: abs(math.log(ratio.value / edge)))
    more = more_runs(ratio, nearest, cap)
    if more is None:
        limit = f"{MOST_MORE} more runs" if cap is None else f"the {cap} runs allowed"
        return f"more than {limit} of each"
    time = "" if round_s is None else f", {_duration(more * round_s)}"
    return f"about {more} more run{'s' if more > 1 else ''} of each{time}"


def _duration(seconds: float) -> str:
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


def _spans(speedup: RatioEstimate, low: float, high: float, wanted: float) -> str:
    if speedup.interval is not None and bounds_nothing(speedup.interval):
        return interval_words(speedup)
    edges = [edge for edge in (MARGINAL_FROM, wanted) if low < edge < high]
    bands = {0: "touches the edge of a band", 1: "spans two bands", 2: "spans three bands"}
    at = ", ".join(f"{edge:g}" for edge in edges)
    return (
        f"interval {factor(low)}-{factor(high)} {bands[len(edges)]}"
        f"{f' (edge at {at})' if at else ''}"
    )


LOOKS = (VERDICT_RUNS, 5, 8, 12, 18, 26, 36)
"""Runs a side at which the data are looked at; the cap is the last look."""

CAP = 50
PRECISION = 0.02
_FINAL_SHARE = 0.7


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


Because = Literal["verdict", "precision", "cap", "failures"]


@dataclass(frozen=True)
class Look:
    """What the data say about more runs."""

    because: Because | None
    """Why no more are needed; None while they are."""
    wanted: int | None
    """Runs to have on each side before the next look; None once it is decided."""
    reason: str


def stop_or_go_on(
    judgement: Judgement,
    interval: Interval | None,
    runs: int,
    *,
    precision: float = PRECISION,
    cap: int = CAP,
) -> Look:
    """Whether more repeats are needed beside the verdict ``judgement`` on this ``interval``.

    Looking at the data again and again at 95 % would be wrong far more often than 5 %: each look is
    another chance to be fooled. So the rule looks only at fixed numbers of runs, and each look
    spends its own part of the error, growing with the runs behind it (an alpha-spending rule in the
    manner of Lan and DeMets, 1983, nominal level proportional to the information):

    nominal level of a look = 0.7 * (1 - confidence) * runs / cap

    Early looks decide only what is obvious; the last one keeps most of the level, so that little is
    decided less often than by a fixed protocol of ``cap`` runs. The factor 0.7 and the looks hold
    by simulation (``benchmarks/interval_coverage.py``; table in docs/statistics.md): the interval
    of pairs at the stop covers the truth in at least 95 of 100 cases of symmetric, skewed and
    drifting noise. What no rule can correct is noise that strikes only one side.

    The verdict is the one of the last look, which is also what is reported: it stops nowhere for
    a verdict that nobody is told. ``runs`` are the pairs by now, or those of the shorter side.
    ``precision`` is the width of the whole interval, relative, at which more runs would change
    nothing worth knowing. Raises ValueError for ``cap`` below the first look.
    """
    looks = schedule(cap)
    if runs >= looks[0]:
        because: Because | None = None
        if judgement.verdict != "undecided":
            because = "verdict"
        elif interval is not None and interval.high / interval.low - 1 <= precision:
            because = "precision"
        elif runs >= cap:
            because = "cap"
        if because is not None:
            return Look(because, None, judgement.reason)
    following = next(look for look in looks if look > runs)
    if runs in looks:
        return Look(None, following, judgement.reason)
    return Look(None, following, f"{runs} runs a side; the next look is at {following}")


def decide_alone(values: Sequence[float], *, precision: float = PRECISION, cap: int = CAP) -> Look:
    """Whether a configuration without a partner needs more repeats: until its own mean is known.

    Raises ValueError as :func:`stop_or_go_on` does.
    """
    seen = last_look(len(values), cap)
    figure = estimate_positive(values[:seen], 1 - nominal_level(seen, cap=cap))
    if figure.interval is not None:
        figure = replace(figure, interval=replace(figure.interval, confidence=0.95))
    said = Judgement("undecided", f"{estimate(figure)} samples/s")
    return stop_or_go_on(said, figure.interval, len(values), precision=precision, cap=cap)


def schedule(cap: int = CAP) -> tuple[int, ...]:
    """The numbers of runs a side at which the data are looked at."""
    if cap < LOOKS[0]:
        raise ValueError(f"cap: found {cap}; allowed: {LOOKS[0]} or more runs")
    return (*(look for look in LOOKS if look < cap), cap)


def last_look(runs: int, cap: int = CAP) -> int:
    """The runs a side that the last look at ``runs`` of them saw; all before the first look."""
    return max((look for look in schedule(cap) if look <= runs), default=runs)


def nominal_level(runs: int, confidence: float = 0.95, cap: int = CAP) -> float:
    """Two-sided error one look at ``runs`` a side may spend."""
    return _FINAL_SHARE * (1 - confidence) * min(runs, cap) / cap


def estimate_at(
    multi: Runs, single: Runs, confidence: float = 0.95, cap: int = CAP
) -> RatioEstimate:
    """The ratio with the interval of the last look at this many pairs, or runs of each side.

    What was made since that look was not looked at: what is decided is decided on what it had.
    The interval carries ``confidence`` as its own, because that is what it holds over all looks.
    """
    runs = last_look(count_pairs(multi, single), cap)
    ratio = estimate_ratio(multi, single, 1 - nominal_level(runs, confidence, cap), runs)
    interval = ratio.interval and replace(ratio.interval, confidence=confidence)
    return replace(ratio, interval=interval)


def count_pairs(multi: Runs, single: Runs) -> int:
    """Pairs of runs, or where there are none the runs of the side that has fewest."""
    a, b, _ = in_pairs(multi, single)
    return min(len(a), len(b))


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


def stability_warning(figure: Estimate, monitored: bool = False) -> str | None:
    """One line of warning about a figure, or None if it may be trusted as it stands.

    ``monitored`` if a script of the user's own took it, which has no ``repeats``.
    """
    if figure.n < 2:
        more = way_to_get("runs", monitored=monitored, runs=figure.n)
        return f"one run does not tell how far others would lie from it: {more}"
    if figure.cv is not None and figure.cv > UNSTABLE_CV:
        return f"unstable: runs vary by {figure.cv:.0%} (CV of {figure.n} runs)"
    if figure.n == 2:
        return "two runs: the interval is as wide as it is because of that"
    return None
