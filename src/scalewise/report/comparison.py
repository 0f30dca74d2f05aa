"""Two sweeps compared, in lines for a terminal and a CI log."""

from __future__ import annotations

from scalewise.analysis.compare import Comparison, Match
from scalewise.analysis.figures import factor, ratio


def as_text(comparison: Comparison) -> str:
    """One line a configuration, what could not be compared and why, and the gate's answer."""
    lines = [f"global samples/s of B over A; what may differ: {comparison.factor}"]
    for match in comparison.matches:
        lines += [_line(match), *(f"{match.label}: {mixture}" for mixture in match.mixed)]
    lines += [f"{one.side}, {one.cell}: left out: {one.fault}" for one in comparison.left_out]
    lines += [f"{one.label}: not comparable: {one.reason}" for one in comparison.unmatched]
    if comparison.gate is not None:
        word = "failed" if comparison.gate.failed else "passed"
        lines.append(f"gate {word}: {comparison.gate.reason}")
    return "".join(f"{line}\n" for line in lines)


def _line(match: Match) -> str:
    runs = " and ".join(map(str, reversed(match.ratio.n)))
    p = "" if match.p_value_holm is None else f", p = {match.p_value_holm:.2g} (Holm)"
    seen = (
        f"; a change beyond {factor(match.detectable)} would be seen four times in five"
        if match.detectable is not None and match.change == "no difference shown"
        else ""
    )
    return f"{match.label}: {match.change}: {ratio(match.ratio)} from {runs} runs{p}{seen}"
