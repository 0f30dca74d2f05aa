"""Pairs that differ in size or batch alone: from how many parameters more devices pay, and means.

One *curve* is one kind of model at one batch size, whose pairs differ in nothing but the model's
size: ``y(w) = (1 - w) y0 + w y1`` between two sizes, with the error ``h(w)^2 = ((1 - w) h0)^2 +
(w h1)^2`` of two independent pairs (docs/studies.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from scalewise.analysis.comparability import grouped, grouped_alike
from scalewise.analysis.decisions import threshold_rule
from scalewise.analysis.scaling import Pair
from scalewise.analysis.statistics import Interval, RatioEstimate, finite_exp
from scalewise.analysis.verdict import PAYS_FROM, SeedLabel, Verdict, seed_label
from scalewise.records import ThresholdRule


def alike(pairs: Sequence[Pair], *free: str) -> list[list[Pair]]:
    """Sound pairs in groups that differ in the batch and in the ``free`` fields of identity alone.

    Bounds of independent models are in none. A field that is not known equals nothing.
    """
    sound = (
        pair
        for pair in pairs
        if not (pair.invalid or pair.multi.is_ceiling or pair.multi.global_batch is None)
    )
    return grouped_alike(sound, lambda pair: pair.multi.identity, "batch", free)


def log_half(speedup: RatioEstimate) -> float | None:
    """Half the width of its interval on the logarithmic scale; None without an interval."""
    found = speedup.interval
    return None if found is None else (math.log(found.high) - math.log(found.low)) / 2


def global_batch(pair: Pair) -> int:
    """Samples a step of all devices, of a pair whose samples were counted."""
    assert pair.multi.global_batch is not None, "a sound pair has them"
    return pair.multi.global_batch


@dataclass(frozen=True)
class AverageSpeedup:
    """The geometric mean of speedups at several batch sizes, all else alike."""

    pairs: tuple[Pair, ...]
    """By batch, smallest first."""
    speedup: RatioEstimate
    """Its interval holds the runs' doubt at these batch sizes; it says nothing of others."""

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(map(global_batch, self.pairs))

    @property
    def seed_label(self) -> SeedLabel:
        """What the published study's rule says of the average."""
        return seed_label(self.speedup.value)

    @property
    def verdicts(self) -> dict[Verdict, list[int]]:
        """Each verdict with the batch sizes that have it."""
        found = grouped(self.pairs, lambda pair: pair.verdict)
        return {verdict: list(map(global_batch, pairs)) for verdict, pairs in found.items()}


FEWEST_BATCHES = 3
"""Batch sizes below which their rows say more than their mean."""


def average_speedups(pairs: Sequence[Pair]) -> tuple[AverageSpeedup, ...]:
    """One for each group of :data:`FEWEST_BATCHES` or more."""
    groups = [sorted(group, key=global_batch) for group in alike(pairs)]
    return tuple(AverageSpeedup(tuple(g), _mean(g)) for g in groups if len(g) >= FEWEST_BATCHES)


def _mean(pairs: Sequence[Pair]) -> RatioEstimate:
    """Of logarithms; each batch has runs of its own, so that their errors are independent."""
    count = len(pairs)
    value = math.exp(sum(math.log(p.speedup.value) for p in pairs) / count)
    runs = (min(p.speedup.n[0] for p in pairs), min(p.speedup.n[1] for p in pairs))
    halves = [half for p in pairs if (half := log_half(p.speedup)) is not None]
    if len(halves) < count:
        return RatioEstimate(value, runs, None, None)
    spread = finite_exp(math.hypot(*halves) / count)
    return RatioEstimate(value, runs, Interval(value / spread, value * spread), None)


LEVELS = (1.0, PAYS_FROM)
"""Speedups whose sizes are looked for: as fast as one device, and worth more devices."""


@dataclass(frozen=True)
class SizedPair:
    """A model of so many parameters, with the rule's word and the measurement's."""

    parameters: int
    batch: int
    """Samples a step of all devices."""
    pair: Pair
    rule: ThresholdRule

    @property
    def rule_is_right(self) -> bool | None:
        """None where the rule or the measurement leaves it open."""
        rule, verdict = self.rule.says, self.pair.verdict
        return None if "undecided" in (rule, verdict) else (rule == "ddp") == (verdict == "pays")


@dataclass(frozen=True)
class SizeInterval:
    """Sizes at which the runs do not tell the speedup from the level."""

    low: float | None
    """None where the smallest size measured is one of them."""
    high: float | None
    """None where the largest size measured is one of them."""
    smallest: int
    """Measured, as is ``largest``."""
    largest: int

    def __str__(self) -> str:
        low = f"under {size_words(self.smallest)}" if self.low is None else size_words(self.low)
        high = f"over {size_words(self.largest)}" if self.high is None else size_words(self.high)
        return f"{low} to {high}"


@dataclass(frozen=True)
class BreakEven:
    """Where the speedup of one curve meets one level."""

    curve: tuple[SizedPair, ...]
    """Smallest model first."""
    level: float
    crossings: tuple[float, ...]
    """Sizes at which the curve meets the level."""
    interval: SizeInterval | None
    """None where every size is told from the level, and where a pair has one run alone."""

    @property
    def parameters(self) -> float | None:
        """The break-even size; None where the curve meets the level never or several times."""
        return self.crossings[0] if len(self.crossings) == 1 else None

    @property
    def reached(self) -> str:
        """The sizes at which it is reached, or that it is not."""
        first, last = self.curve[0], self.curve[-1]
        sizes = f"{size_words(first.parameters)} and {size_words(last.parameters)}"
        begins = first.pair.speedup.value >= self.level
        if len(self.crossings) > 1:
            return f"with changes at {' and '.join(map(size_words, self.crossings))}"
        if self.crossings:
            at = size_words(self.crossings[0])
            return f"up to {at}" if begins else f"from {at} on"
        if begins:
            return f"everywhere between {sizes}"
        told = "" if self.interval is None else ", which the runs do not exclude"
        return f"nowhere between {sizes}{told}"


def size_words(parameters: float) -> str:
    """``1.23 M``: three digits in millions."""
    return f"{float(f'{parameters / 1e6:.3g}'):,.10g} M"


def size_families(pairs: Sequence[Pair]) -> tuple[tuple[SizedPair, ...], ...]:
    """Pairs that differ in size and batch of their model alone, by size, then by batch."""
    families = []
    for group in alike(pairs, "model"):
        sized = [
            SizedPair(parameters, batch, pair, threshold_rule(parameters, batch))
            for pair in group
            # 0: not counted
            if (parameters := pair.multi.rank_summaries[0].parameters_total)
            and (batch := global_batch(pair))
        ]
        families += [
            tuple(sorted(rows, key=lambda row: (row.parameters, row.batch)))
            for rows in grouped(sized, lambda row: model_kind(row.pair)).values()
            if len({row.parameters for row in rows}) > 1
        ]
    return tuple(families)


def model_kind(pair: Pair) -> str:
    """The class of its model, else the model's name."""
    return str(pair.multi.setting("model._target_") or pair.multi.name("model")).rpartition(".")[2]


def break_evens(family: Sequence[SizedPair]) -> Iterator[BreakEven]:
    """Of each batch size in turn, at each of :data:`LEVELS`.

    None of a batch size at which one size ran once, or two models have equally many parameters.
    """
    for batch in sorted({row.batch for row in family}):
        curve = tuple(row for row in family if row.batch == batch)
        if 1 < len({row.parameters for row in curve}) == len(curve):
            yield from (_break_even(curve, level) for level in LEVELS)


def _break_even(curve: tuple[SizedPair, ...], level: float) -> BreakEven:
    x = [math.log(row.parameters) for row in curve]
    y = [math.log(row.pair.speedup.value / level) for row in curve]
    h = [log_half(row.pair.speedup) for row in curve]
    crossings, left_open = [], []
    for (x0, y0, h0), (x1, y1, h1) in pairwise(zip(x, y, h, strict=True)):
        if (y0 < 0) != (y1 < 0):
            crossings.append(math.exp(x0 + (x1 - x0) * y0 / (y0 - y1)))
        if h0 is not None and h1 is not None:
            # The ends of the curve are met to the last bit: nothing lies beyond them.
            left_open += [(1 - w) * x0 + w * x1 for w in _left_open(y0, y1, h0, h1)]
    return BreakEven(curve, level, tuple(crossings), _interval(curve, left_open))


def _interval(curve: Sequence[SizedPair], logs: Sequence[float]) -> SizeInterval | None:
    """Around the logarithms of sizes that are left open."""
    first, last = curve[0].parameters, curve[-1].parameters
    if not logs or any(row.pair.speedup.interval is None for row in curve):
        return None
    low, high = min(logs), max(logs)
    least = math.exp(low) if low > math.log(first) else None
    return SizeInterval(least, math.exp(high) if high < math.log(last) else None, first, last)


def _left_open(y0: float, y1: float, h0: float, h1: float) -> list[float]:
    """Ends of the shares ``w`` of the way at which ``y(w)^2 <= h(w)^2``; empty where at none."""

    def excess(w: float) -> float:
        return ((1 - w) * y0 + w * y1) ** 2 - ((1 - w) * h0) ** 2 - (w * h1) ** 2

    ends = [w for w in (0.0, 1.0) if excess(w) <= 0]
    # excess(w) = a w^2 + b w + y0^2 - h0^2
    a = (y1 - y0) ** 2 - h0**2 - h1**2
    b = 2 * (y0 * (y1 - y0) + h0**2)
    root = b * b - 4 * a * (y0**2 - h0**2)
    if a and root >= 0:
        roots = ((-b + sign * math.sqrt(root)) / (2 * a) for sign in (-1, 1))
        ends += [w for w in roots if 0 < w < 1]
    return ends
