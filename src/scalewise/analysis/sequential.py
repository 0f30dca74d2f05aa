"""``repeats=auto``: add interleaved repeats until the verdict is decided, and no longer.

Looking at the data again and again at 95 % would be wrong far more often than 5 %: each look is
another chance to be fooled. So the rule looks only at fixed numbers of runs, and each look spends
its own part of the error, growing with the runs behind it (an alpha-spending rule in the manner
of Lan and DeMets, 1983, nominal level proportional to the information):

    nominal level of a look = 0.7 * (1 - confidence) * runs / cap

Early looks decide only what is obvious; the last one keeps most of the level, so that little is
decided less often than by a fixed protocol of ``cap`` runs. The factor 0.7 and the looks were
chosen by simulation (``benchmarks/sequential_stopping.py``), over run-to-run CVs of 1 to 40 %,
skewed noise, outliers on both sides and drift: the interval at the stop covers the truth in
at least 95 of 100 cases. What no rule can correct is noise that strikes only one side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from scalewise.analysis.figures import factor
from scalewise.analysis.statistics import (
    Estimate,
    Interval,
    RatioEstimate,
    estimate_positive,
    estimate_ratio,
)
from scalewise.analysis.verdict import MIN_EFFICIENCY, Judgement, judge

LOOKS = (3, 5, 8, 12, 18, 26, 36)
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


@dataclass(frozen=True)
class Continue:
    """Undecided: more runs are needed."""

    runs_each: int
    """Runs to have on each side before asking again."""
    reason: str


@dataclass(frozen=True)
class Decided:
    """No more runs: what was found, and why it ends here."""

    judgement: Judgement
    speedup: RatioEstimate
    """With the interval corrected for looking more than once."""
    because: Literal["verdict", "precision", "cap"]


def judge_at(
    speedup: RatioEstimate, devices: int, min_efficiency: float = MIN_EFFICIENCY
) -> Judgement:
    """The verdict of a look (:func:`estimate_at`): none before the first."""
    runs = min(speedup.n)
    if runs >= LOOKS[0]:
        return judge(speedup, devices, min_efficiency)
    return Judgement(
        "inconclusive",
        f"speedup {factor(speedup.value)} on {devices} devices, from {runs} of the {LOOKS[0]} "
        "runs a side that repeats=auto begins with",
    )


def stop_or_go_on(
    judgement: Judgement,
    speedup: RatioEstimate,
    runs: int,
    *,
    precision: float = PRECISION,
    cap: int = CAP,
) -> Continue | Decided:
    """Whether more repeats are needed beside the verdict ``judgement`` on ``speedup``.

    That is the one of the last look, which is also what is reported: it stops nowhere for a
    verdict that nobody is told. ``runs`` are those of the side that has fewest by now.
    ``precision`` is the width of the whole interval, relative, at which more runs would change
    nothing worth knowing. Ask again only when ``Continue.runs_each`` runs a side are there.
    Raises ValueError for ``cap`` below the first look.
    """
    looks = schedule(cap)
    if runs >= looks[0]:
        if judgement.verdict != "inconclusive":
            return Decided(judgement, speedup, "verdict")
        if speedup.interval is not None and _width(speedup.interval) <= precision:
            return Decided(judgement, speedup, "precision")
        if runs >= cap:
            return Decided(judgement, speedup, "cap")
    following = next(look for look in looks if look > runs)
    if runs in looks:
        return Continue(following, judgement.reason)
    return Continue(following, f"{runs} runs a side; the next look is at {following}")


@dataclass(frozen=True)
class DecidedAlone:
    """No more runs of a configuration that is compared with nothing."""

    figure: Estimate
    """With the interval corrected for looking more than once."""
    because: Literal["precision", "cap"]


def decide_alone(
    values: Sequence[float],
    *,
    confidence: float = 0.95,
    precision: float = PRECISION,
    cap: int = CAP,
) -> Continue | DecidedAlone:
    """Whether a configuration without a partner needs more repeats: until its own mean is known.

    ``precision`` is the width of the whole interval over the mean. Raises ValueError as
    :func:`stop_or_go_on` does.
    """
    looks, runs = schedule(cap), len(values)
    if runs not in looks and runs < cap:
        following = next(look for look in looks if look > runs)
        return Continue(following, f"{runs} runs; the next look is at {following}")
    nominal = estimate_positive(values, 1 - nominal_level(runs, confidence, cap))
    interval = nominal.interval
    assert interval is not None  # every look has three runs or more
    figure = replace(nominal, interval=replace(interval, confidence=confidence))
    width = (interval.high - interval.low) / figure.value
    if width <= precision:
        return DecidedAlone(figure, "precision")
    if runs >= cap:
        return DecidedAlone(figure, "cap")
    following = next(look for look in looks if look > runs)
    return Continue(following, f"the interval is {width:.1%} wide; {precision:.1%} is wanted")


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
    multi: Sequence[float], single: Sequence[float], confidence: float = 0.95, cap: int = CAP
) -> RatioEstimate:
    """The ratio with the interval of the last look at this many runs.

    One side may have more runs, for another partner, and runs made since the last look were not
    looked at: what is decided is decided on as many as that look had of both sides.
    The interval carries ``confidence`` as its own, because that is what it holds over all looks.
    """
    runs = last_look(min(len(single), len(multi)), cap)
    nominal = 1 - nominal_level(runs, confidence, cap)
    ratio = estimate_ratio(multi[:runs], single[:runs], nominal)
    if ratio.interval is None:
        return ratio
    interval = Interval(ratio.interval.low, ratio.interval.high, confidence)
    return RatioEstimate(ratio.value, ratio.n, interval, ratio.p_value)


def _width(interval: Interval) -> float:
    return math.expm1(math.log(interval.high / interval.low))
