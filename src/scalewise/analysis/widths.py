"""Numbers of devices side by side: what each gains over the next smaller one, not over one alone.

A speedup over one device may still rise while the devices that were added last bring next to
nothing. Widths stand in one ladder where all of them have the same single-device twin, which makes
them comparable to it, the same strategy, and no field of identity in which they differ from each
other but the devices (:mod:`scalewise.analysis.identity`).

With samples/s ``r(n)`` of n devices and ``r(m)`` of the next smaller width, the gain is
``r(n) / r(m)``, and each added device brings, of what one of the m does,

    (r(n) / r(m) - 1) * m / (n - m)

which is 1 where the added devices work as well as those before them. Both rise together, so the
ends of the gain's interval are those of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scalewise.analysis.ceiling import is_ceiling
from scalewise.analysis.figures import bounds_nothing
from scalewise.analysis.identity import differences
from scalewise.analysis.runs import Configuration
from scalewise.analysis.scaling import Pair
from scalewise.analysis.sequential import adaptive, estimate_at
from scalewise.analysis.statistics import Interval, RatioEstimate, estimate_ratio

Step = Literal["faster", "slower", "not shown"]


@dataclass(frozen=True)
class Gain:
    """A width beside the next smaller one."""

    smaller: int
    """Devices of that one."""
    ratio: RatioEstimate
    """Samples/s over those of the smaller width."""
    added: RatioEstimate
    """What each added device brings, of what one of the smaller width's does; may be negative."""

    @property
    def step(self) -> Step:
        """What the whole interval says of the larger width; without an interval nothing."""
        interval = self.ratio.interval
        if interval is None or interval.low <= 1 <= interval.high:
            return "not shown"
        return "faster" if interval.low > 1 else "slower"


@dataclass(frozen=True)
class Width:
    """One number of devices in a ladder."""

    config: Configuration
    devices: int
    pair: Pair | None
    """None of the single device."""
    gain: Gain | None
    """None of the single device, and where the next smaller width is not comparable."""


Fields = tuple[tuple[str, str], ...]
Ladder = tuple[Width, ...]
"""One workload and strategy from one device up; more devices below fewer."""


def ladders(pairs: Sequence[Pair]) -> tuple[Ladder, ...]:
    """Every workload and strategy that ran on one device and on several, in the pairs' order.

    Independent models are left out: they are a bound, and nothing that one could choose. So are
    invalid pairs.
    """
    groups: dict[tuple[str, Fields], list[Pair]] = {}
    for pair in pairs:
        if not is_ceiling(pair.multi) and not pair.invalid:
            groups.setdefault((pair.single.config_id, _same(pair.multi)), []).append(pair)
    return tuple(_ladder(group) for group in groups.values())


def _same(config: Configuration) -> Fields:
    """What those of one ladder share: the strategy's settings but its devices, and the scaling,
    which a script of the user's own may be read as one or the other."""
    fields = {k: v for k, v in config.identity.items() if k.startswith("strategy.")}
    fields.pop("strategy.devices", None)
    return tuple(sorted({**fields, "scaling": config.identity.get("scaling", "")}.items()))


def _ladder(pairs: Sequence[Pair]) -> Ladder:
    found = [Width(pairs[0].single, 1, None, None)]
    for pair in sorted(pairs, key=lambda p: p.devices):
        smaller = [width for width in found if width.devices < pair.devices]
        found.append(
            Width(pair.multi, pair.devices, pair, _gain(pair, fastest_of_each(smaller)[-1]))
        )
    return tuple(found)


def fastest_of_each(widths: Sequence[Width]) -> tuple[Width, ...]:
    """One of each number of devices, in their order.

    Of two with as many (other GPUs of the host) neither is the other's next, and nobody who adds
    devices would begin with the slower one.
    """
    best: dict[int, Width] = {}
    for width in widths:
        other = best.get(width.devices)
        if other is None or _rate(width) > _rate(other):
            best[width.devices] = width
    return tuple(best.values())


def _rate(width: Width) -> float:
    found = width.config.estimate("samples_per_s")
    return found.value if found is not None else 0.0


def _gain(pair: Pair, below: Width) -> Gain | None:
    if below.pair is None:
        ratio = pair.speedup
    elif differences(below.config.identity, pair.multi.identity):
        return None
    else:
        ratio = _ratio(pair.multi, below.config)
    return Gain(below.devices, ratio, _of_each_added(ratio, below.devices, pair.devices))


def _ratio(multi: Configuration, below: Configuration) -> RatioEstimate:
    """As a speedup is taken: runs that were added on looking at them carry the price of it."""
    rates = multi.values("samples_per_s"), below.values("samples_per_s")
    asked = adaptive(multi.cells[0].config)
    return estimate_ratio(*rates) if asked is None else estimate_at(*rates, cap=asked.cap)


def _of_each_added(ratio: RatioEstimate, smaller: int, devices: int) -> RatioEstimate:
    def of_each(value: float) -> float:
        return (value - 1) * smaller / (devices - smaller)

    found = None if ratio.interval and bounds_nothing(ratio.interval) else ratio.interval
    interval = found and Interval(of_each(found.low), of_each(found.high), found.confidence)
    return RatioEstimate(of_each(ratio.value), ratio.n, interval, None)
