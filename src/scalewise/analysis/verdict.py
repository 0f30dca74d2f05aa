"""What a speedup means: the verdict, and the published study's label apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy

from scalewise.analysis.figures import bounds_nothing, estimate, factor, interval_words
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


MissingRuns = Literal["runs", "runs of both", "one device", "several devices"]


def way_to_get(lack: MissingRuns, *, monitored: bool, runs: int = 0) -> str:
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
BANDS: tuple[Verdict, ...] = ("prefer single", "marginal", "beneficial")


def band(speedup: float, devices: int, min_efficiency: float = MIN_EFFICIENCY) -> Verdict:
    """The verdict on a speedup that were known exactly."""
    if speedup > BENEFICIAL_FROM and speedup >= min_efficiency * devices:
        return "beneficial"
    return "marginal" if speedup >= MARGINAL_FROM else "prefer single"


LINEAR_UP_TO = 1.02
"""Efficiency up to which an interval is not called more than linear: a smaller share of the batch
that fits a cache gains a little. Within as much of what it costs on one device, a sample is *as
dear*."""


@dataclass(frozen=True)
class Judgement:
    """A verdict and why; what is empty has nothing to say."""

    verdict: Verdict
    reason: str
    """The whole sentence; the fields below are its parts, for a shorter one."""
    asked: str = ""
    """The edge that is open, or that decided: ``2.00x is asked for``."""
    certain: str = ""
    """What an undecided one leaves no doubt of: ``at least 1.99 times as fast``."""
    open: str = ""
    """What keeps it undecided: ``whether efficiency reaches 0.5 is open``."""
    more: str = ""
    """What it would take to leave the nearest edge: ``about 4 more runs of each, 2 min``."""
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

    An undecided one says what the interval does tell, of the speed and of the money.
    """
    wanted = max(BENEFICIAL_FROM, min_efficiency * devices)
    asked = f"{factor(wanted)}x is asked for"
    figure = f"speedup {factor(speedup.value)} on {devices} devices"
    runs, low, high = min(speedup.n), 0.0, math.inf
    if speedup.interval is not None:
        low, high = speedup.interval.low, speedup.interval.high
    if runs < VERDICT_RUNS:
        todo = "" if cap else f"; {way_to_get('runs of both', monitored=monitored, runs=runs)}"
        needs = f"a verdict needs {VERDICT_RUNS}"
        few = f"{figure}, from {count_words(speedup)}: {needs}{todo}"
        more = _runs_words(VERDICT_RUNS - runs, "at least", round_s)
        return Judgement(
            "undecided",
            few,
            asked,
            open=f"{needs} runs of each",
            more=more,
            more_runs=VERDICT_RUNS - runs,
        )
    figure += f" ({interval_words(speedup)}, {count_words(speedup)})"
    decided = f"{figure}, efficiency {factor(speedup.value / devices)}"
    if low > BENEFICIAL_FROM and low >= wanted:
        return Judgement("beneficial", decided, asked)
    least = f"below {factor(MARGINAL_FROM)}x a single device is preferred"
    if high < MARGINAL_FROM:
        return Judgement("prefer single", f"{decided}: slower than one device", least)
    if low >= MARGINAL_FROM and high <= wanted:
        if low > BENEFICIAL_FROM:
            decided += f": faster, but below the efficiency of {min_efficiency:g} asked for"
        return Judgement("marginal", decided, asked)
    # Beyond the runs wanted at first, a script is to be run again, not so many times more.
    todo = way_to_get("runs of both", monitored=monitored, runs=max(runs, WANTED_RUNS))
    is_open = {MARGINAL_FROM: low < MARGINAL_FROM, wanted: low <= wanted <= high}
    edges = [edge for edge, spanned in is_open.items() if spanned]
    certain = _bound_words(speedup.interval, edges)
    open_ = _open_words(edges, min_efficiency)
    need = more_runs_words(speedup, edges, cap, round_s)
    money = money_words(sample_cost(speedup, devices), low <= 1 <= high)
    told = "; ".join(part for part in (certain, open_, money) if part)
    end = ": ".join(part for part in ("" if cap else todo, need) if part)
    return Judgement(
        "undecided",
        f"{figure}: {told}" + (f"; {end}" if end else ""),
        asked if wanted in edges else least,
        certain,
        open_,
        need,
        more_runs(speedup, _nearest(speedup, edges), cap),
    )


def _open_words(edges: Sequence[float], min_efficiency: float) -> str:
    """``whether it reaches 0.95 or efficiency reaches 0.5 is open``."""
    speeds = [f"{edge:g}" for edge in edges if edge in (MARGINAL_FROM, BENEFICIAL_FROM)]
    parts = [f"it reaches {' or '.join(speeds)}"] if speeds else []
    if len(speeds) < len(edges):
        parts.append(f"efficiency reaches {min_efficiency:g}")
    return f"whether {' or '.join(parts)} is open"


def _bound_words(interval: Interval | None, open_edges: Sequence[float]) -> str:
    """The end that bounds the gain where the lower edge is open, else the one that it reaches."""
    if interval is None or (len(open_edges) > 1 and bounds_nothing(interval)):
        return ""
    if MARGINAL_FROM in open_edges:
        return f"at most {_short_of(interval.high, math.ceil, open_edges)} times as fast"
    return f"at least {_short_of(interval.low, math.floor, open_edges)} times as fast"


def _short_of(end: float, to_whole: Callable[[float], int], edges: Sequence[float]) -> str:
    """The end of an interval as it is printed, but never rounded onto an edge that it includes."""
    said = factor(end)
    return _outwards(end, to_whole) if said in map(factor, edges) else said


def _outwards(end: float, to_whole: Callable[[float], int]) -> str:
    """The end of an interval rounded away from it, so that what is said holds of all of it."""
    return factor(to_whole(round(100 * end, 9)) / 100)


Money = Literal["cheaper", "as dear", "dearer", "unknown"]


def sample_cost(speedup: RatioEstimate, devices: int) -> RatioEstimate:
    """A sample's cost over that on the single device, at equal prices: ``devices / speedup``."""
    return speedup.scaled(1 / devices).inverted()


def judge_money(cost: RatioEstimate) -> Money:
    """What the whole interval of the cost of a sample says, of three runs or more.

    *As dear* within :data:`LINEAR_UP_TO` either way; *dearer* above 1; *cheaper* only beyond that
    tolerance, since several devices that are more than linear have to be explained first.
    """
    if cost.interval is None or min(cost.n) < VERDICT_RUNS:
        return "unknown"
    low, high = cost.interval.low, cost.interval.high
    if low >= 1 / LINEAR_UP_TO and high <= LINEAR_UP_TO:
        return "as dear"
    if low > 1:
        return "dearer"
    return "cheaper" if high < 1 / LINEAR_UP_TO else "unknown"


def money_words(cost: RatioEstimate, is_speed_open: bool) -> str:
    """``dearer for certain, faster unknown: at equal prices a sample costs over 1.61 times ...``.

    Empty where nothing is certain of the cost.
    """
    money, interval = judge_money(cost), cost.interval
    if interval is None or money == "unknown":
        return ""
    if money == "as dear":
        said = f"about as much, within {100 * (LINEAR_UP_TO - 1):.0f} %,"
    elif money == "dearer":
        said = f"over {_outwards(interval.low, math.floor)} times as much"
    else:
        said = f"under {_outwards(interval.high, math.ceil)} times as much"
    faster = ", faster unknown" if is_speed_open else ""
    return f"{money} for certain{faster}: at equal prices a sample costs {said} as on one device"


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
    more = more_runs(ratio, _nearest(ratio, edges), cap)
    if more is None:
        limit = f"{MOST_MORE} more runs" if cap is None else f"the {cap} runs allowed"
        return f"more than {limit} of each"
    return _runs_words(more, "about", round_s)


def _nearest(ratio: RatioEstimate, edges: Sequence[float]) -> float:
    return min(edges, key=lambda edge: abs(math.log(ratio.value / edge)))


def _runs_words(more: int, how: str, round_s: float | None) -> str:
    time = "" if round_s is None else f", {_duration(more * round_s)}"
    return f"{how} {more} more run{'s' if more > 1 else ''} of each{time}"


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
class StoppingDecision:
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
) -> StoppingDecision:
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
            return StoppingDecision(because, None, judgement.reason)
    following = next(look for look in looks if look > runs)
    if runs in looks:
        return StoppingDecision(None, following, judgement.reason)
    return StoppingDecision(None, following, f"{runs} runs a side; the next look is at {following}")


def decide_alone(
    values: Sequence[float], *, precision: float = PRECISION, cap: int = CAP
) -> StoppingDecision:
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


def estimate_without_outliers(values: Values) -> Estimate | None:
    """The mean of a positive quantity without flagged runs, to stand *beside* that of all.

    None if none is flagged.
    """
    flagged = outliers(values)
    if not flagged:
        return None
    return estimate_positive([v for i, v in enumerate(values) if i not in flagged])


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
