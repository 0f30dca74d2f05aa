"""Two sweeps compared, in lines for a terminal and a CI log."""

from __future__ import annotations

from scalewise.analysis.compare import Comparison
from scalewise.analysis.figures import bounds_nothing, confidence, factor, ratio
from scalewise.analysis.gate import Gate
from scalewise.analysis.matches import Match
from scalewise.analysis.statistics import Interval


def as_text(comparison: Comparison) -> str:
    """One line a configuration, what could not be compared and why, and the gate's answer."""
    lines = [f"global samples/s of B over A; what may differ: {comparison.factor}"]
    for match in comparison.matches:
        lines += [_line(match), *(f"{match.label}: {mixture}" for mixture in match.mixed)]
    lines += [f"{side}: {line}" for side, line in comparison.replaced]
    lines += [f"{one.side}, {one.cell}: left out: {one.fault}" for one in comparison.left_out]
    lines += [f"{one.label}: not comparable: {one.reason}" for one in comparison.unmatched]
    if comparison.gate is not None:
        lines.append(f"gate {_outcome(comparison.gate)}: {comparison.gate.reason}")
    return "".join(f"{line}\n" for line in lines)


def _outcome(gate: Gate) -> str:
    if gate.failed:
        return "failed"
    return "passed, WARNING" if gate.blind else "passed"


def _line(match: Match) -> str:
    runs = " and ".join(map(str, reversed(match.ratio.n)))
    level = _level(match.ratio.interval)
    p = "" if match.p_value_holm is None else f", p = {match.p_value_holm:.2g} (Holm)"
    seen = _seen(match.detectable) if match.change == "no difference shown" else ""
    return f"{match.label}: {match.change}: {ratio(match.ratio)}{level} from {runs} runs{p}{seen}"


def _level(interval: Interval | None) -> str:
    """95 % for one configuration, more for several: the level that Holm's correction left."""
    if interval is None or bounds_nothing(interval):
        return ""
    return f" ({confidence(interval)} interval)"


def _seen(detectable: float | None) -> str:
    """What such runs would show; nothing where that is out of reach."""
    if detectable is None:
        return ""
    return f"; a change beyond {factor(detectable)} would be seen four times in five"
