"""What a figure is, and how it and its doubt are written: never more than is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, Generic, Literal, TypeVar

from scalewise.analysis.statistics import Estimate, Interval, RatioEstimate
from scalewise.records import to_plain

MISSING = "-"
UNBOUNDED = 1e3
"""Upper over lower end from which an interval says nothing: three orders of magnitude."""
_LOPSIDED = 0.05
"""How far from the middle of its interval, in halves of it, a figure still counts as its middle."""
_EQUAL = 1e-9
"""Half width, in parts of the figure, below which runs are called equal: rounding makes as much."""
_MOST_DIGITS = 5
"""Significant digits of a figure, and of the ends of its interval."""


def number(value: float | None) -> str:
    """Three significant digits, thousands grouped; a dash for None."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(float(f"{value:.3g}"))))
    return f"{value:,.{max(0, 2 - magnitude)}f}" if -3 <= magnitude < 7 else f"{value:.2e}"


def factor(value: float) -> str:
    """A ratio: two decimals from 0.1 to 1,000, beyond two or three significant digits."""
    if 0.1 <= abs(value) < 1000:
        return f"{value:.2f}"
    return f"{value:.2g}" if abs(value) < 0.1 else number(value)


def estimate(figure: Estimate | None) -> str:
    """``mean (low-high)``, both ends to the second digit of half their distance.

    Ends of which the mean is not the middle have three digits each. Runs that agree to the last
    bit, as repeats of one seed may, tell nothing of how far others would lie from them: they are
    said to be equal, and not to be certain.
    """
    if figure is None:
        return MISSING
    if figure.interval is None:
        return number(figure.value)
    if bounds_nothing(figure.interval):
        return f"{number(figure.value)} ({no_bound(figure.n)})"
    value, low, high = figure.value, figure.interval.low, figure.interval.high
    half = (high - low) / 2
    if half <= _EQUAL * abs(value):
        which = "both" if figure.n == 2 else f"all {figure.n}"
        return f"{number(value)} (equal in {which} runs)"
    first = _place(value) if value else _place(half)
    place = min(max(_place(float(f"{half:.1e}")) - 1, first - _MOST_DIGITS + 1), first)
    if place < -6 or abs((high + low) / 2 - value) > _LOPSIDED * half:
        ends = (number(float(f"{end:.3g}")) for end in (low, high))
        return f"{number(float(f'{value:.3g}'))} ({between(*ends)})"
    return f"{_to_place(value, place)} ({between(_to_place(low, place), _to_place(high, place))})"


def between(low: str, high: str) -> str:
    """``1.57-1.72``, an interval's ends; ``-0.7 to 0.3`` where one has a sign."""
    return f"{low} to {high}" if "-" in f"{low}{high}" else f"{low}-{high}"


def _place(value: float) -> int:
    """The power of ten of the first digit."""
    return math.floor(math.log10(abs(value)))


def _to_place(value: float, place: int) -> str:
    return f"{round(value, -place):,.{max(0, -place)}f}"


def ratio(figure: RatioEstimate) -> str:
    """``value (low-high)``; ratios are not symmetric around their value."""
    return _bounded(factor(figure.value), figure.interval, no_bound(*figure.n))


def _ends(interval: Interval) -> str:
    return between(factor(interval.low), factor(interval.high))


def times(figure: RatioEstimate) -> str:
    """``1.65x (1.57-1.72)``, or that it bounds nothing; the value alone without an interval."""
    return _bounded(f"{factor(figure.value)}x", figure.interval, "no useful bound")


def _bounded(value: str, interval: Interval | None, unbounded: str) -> str:
    if interval is None:
        return value
    return f"{value} ({unbounded if bounds_nothing(interval) else _ends(interval)})"


def interval_words(figure: RatioEstimate) -> str:
    """``95 % interval 1.57-1.72``, or that it bounds nothing. Raises ValueError without one."""
    if figure.interval is None:
        raise ValueError("a ratio of single runs has no interval")
    if bounds_nothing(figure.interval):
        return no_bound(*figure.n)
    return f"{confidence(figure.interval)} interval {_ends(figure.interval)}"


def confidence(interval: Interval) -> str:
    """``95 %``; of a corrected level, two digits of what is missing from 100: ``98.3 %``."""
    return f"{100 - float(f'{100 * (1 - interval.confidence):.2g}'):.10g} %"


def bounds_nothing(interval: Interval) -> bool:
    """Whether an interval of a positive quantity is too wide to say anything.

    Intervals of rates and ratios come from logarithms. Those of two or three runs may reach over
    many powers of ten: small ends keep their digits, since 0.00 would be a bound that nobody
    measured, and an interval that bounds nothing is called that.
    """
    return interval.low > 0 and interval.high > UNBOUNDED * interval.low


def bounding(figure: Estimate | RatioEstimate | None) -> Interval | None:
    """Its interval; None too for one that bounds nothing."""
    found = figure.interval if figure is not None else None
    return None if found is None or bounds_nothing(found) else found


def no_bound(*runs: int) -> str:
    """``no useful bound from 2 runs``; of both sides where they have unequal numbers."""
    return f"no useful bound from {' and '.join(map(str, dict.fromkeys(runs)))} runs"


def count_range(counts: Iterable[int]) -> str:
    """``3``, or ``3 to 5``: the smallest and the largest."""
    found = sorted(counts)
    return " to ".join(map(str, dict.fromkeys((found[0], found[-1]))))


def listed(names: Sequence[str], most: int) -> str:
    """``a, b and 3 more``: the first ``most`` names, and how many others there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def written(value: Any) -> str:
    """Any value as tables have it: figures over runs with their doubt, thousands grouped."""
    match value:
        case Estimate():
            return estimate(value)
        case RatioEstimate():
            return ratio(value)
        case float() | None:
            return number(value)
        case int():
            return f"{value:,}"
        case _:
            return str(value)


def mean_alone(figure: Estimate) -> str:
    return number(figure.value)


@dataclass(frozen=True)
class BoundedFigure:
    """A figure whose interval may have no upper end: hours after which something never pays."""

    value: float | None
    """None where it never does."""
    low: float | None
    high: float | None

    def __str__(self) -> str:
        """``3,400 (3,100-never)``; a payback without an end is never."""
        value, low, high = (
            "never" if one is None else number(one) for one in (self.value, self.low, self.high)
        )
        return value if self.low is self.high is None else f"{value} ({between(low, high)})"


Scale = Literal["positive", "not negative", "any sign"]
Of = TypeVar("Of")
"""What a figure is read from: a run, or a row of a table."""


@dataclass(frozen=True)
class Figure(Generic[Of]):
    """One figure: every table, file, page and tracker that has it takes it from here."""

    key: str
    """Its column in files and its key in JSON, with its unit and scope."""
    of: Callable[[Of], Any]
    """Reads it; None where it was not measured."""
    says: str
    """What it is, for docs/tables.md."""
    heading: str = ""
    """Of its column in tables to read."""
    unit: str = ""
    on: str = ""
    """The tables that show it, beside the files."""
    text: Callable[[Any], str] = written
    """How it is written; ``str`` for words, which stand on the left."""
    has_ends: bool = False
    """Whether files have the ends of its interval."""
    in_csv: bool = True
    """Whether ``results.csv`` has it; ``results.json`` has all."""
    scale: Scale | None = None
    """Of its interval over runs; None for what is no number, or is not estimated over runs."""

    @property
    def columns(self) -> tuple[str, ...]:
        """What files call it, and the ends of its interval."""
        return (self.key, *((f"{self.key}_low95", f"{self.key}_high95") if self.has_ends else ()))

    def in_columns(self, row: Of) -> dict[str, Any]:
        """Its values by column; ends that bound nothing are missing."""
        found = value_in_columns(self.key, self.of(row))
        return {column: found.get(column) for column in self.columns}


def value_in_columns(key: str, value: Any) -> dict[str, Any]:
    """A value by its column in files; of several parts a column each, as an interval's ends."""
    if not isinstance(value, Estimate | RatioEstimate):
        parts = to_plain(value).items() if is_dataclass(value) else ()
        return {f"{key}_{name}": part for name, part in parts} or {key: value}
    interval = bounding(value)
    return {
        key: value.value,
        f"{key}_low95": interval and interval.low,
        f"{key}_high95": interval and interval.high,
    }


def as_plain(value: Any) -> Any:
    """Any value for JSON: an interval that bounds nothing is None, with the reason beside it."""
    if isinstance(value, list | tuple):
        return [*map(as_plain, value)]
    plain = to_plain(value)
    if is_dataclass(value):
        plain = {name: as_plain(getattr(value, name)) for name in plain}
    is_figure = isinstance(value, Estimate | RatioEstimate)
    if is_figure and value.interval and bounds_nothing(value.interval):
        runs = (value.n,) if isinstance(value.n, int) else value.n
        plain |= {"interval": None, "interval_missing": no_bound(*runs)}
    return plain
