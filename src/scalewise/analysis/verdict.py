"""What a speedup means: the verdict, and the published study's label apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scalewise.analysis.asking import for_more_runs_of_both
from scalewise.analysis.figures import bounds_nothing, factor, interval_words
from scalewise.analysis.statistics import RatioEstimate

Verdict = Literal["invalid", "beneficial", "marginal", "prefer single", "inconclusive", "ceiling"]
SeedLabel = Literal["beneficial", "marginal", "single"]

BENEFICIAL_FROM = 1.1
MARGINAL_FROM = 0.95
MIN_EFFICIENCY = 0.5


@dataclass(frozen=True)
class Judgement:
    """A verdict and why."""

    verdict: Verdict
    reason: str


def judge(
    speedup: RatioEstimate,
    devices: int,
    min_efficiency: float = MIN_EFFICIENCY,
    *,
    monitored: bool = False,
) -> Judgement:
    """The verdict, which needs the whole interval inside one band.

    Bands of the speedup: *prefer single* below 0.95; *marginal* from there to 1.1, and beyond
    while the efficiency stays under ``min_efficiency``; *beneficial* above both. What to do about
    an inconclusive one is worded for a sweep, or with ``monitored`` for a script of one's own.
    """
    wanted = max(BENEFICIAL_FROM, min_efficiency * devices)
    figure = f"speedup {factor(speedup.value)} on {devices} devices"
    more = for_more_runs_of_both(monitored, min(speedup.n))
    if speedup.interval is None:
        n = " and ".join(str(n) for n in speedup.n)
        return Judgement("inconclusive", f"{figure}, from {n} runs: no interval; {more}")
    low, high = speedup.interval.low, speedup.interval.high
    efficiency = factor(speedup.value / devices)
    figure += f" ({interval_words(speedup)}), efficiency {efficiency}"
    if low > BENEFICIAL_FROM and low >= wanted:
        return Judgement("beneficial", figure)
    if high < MARGINAL_FROM:
        return Judgement("prefer single", f"{figure}: slower than one device")
    if low >= MARGINAL_FROM and high <= wanted:
        if low > BENEFICIAL_FROM:
            figure += f": faster, but below the efficiency of {min_efficiency:g} asked for"
        return Judgement("marginal", figure)
    why = f"speedup {factor(speedup.value)}: {_spans(speedup, low, high, wanted)}"
    return Judgement("inconclusive", f"{why}: {more}")


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
