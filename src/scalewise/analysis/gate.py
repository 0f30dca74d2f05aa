"""The gate of ``scalewise compare --fail-if``: fails on what is shown, and on nothing to compare.

A pass is no proof: what it does not exclude is said with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from scalewise.analysis.figures import bounds_nothing, confidence
from scalewise.analysis.matches import Match, Unmatched

MOST_NAMED = 4
"""Configurations that a pass without proof names; the others stand in lines of their own."""


@dataclass(frozen=True)
class Gate:
    """The answer for CI."""

    failed: bool
    reason: str
    blind: bool = False
    """It passed although a slowdown beyond the limit is not excluded."""


def parse_limit(text: str) -> float:
    """``slower=3%`` or ``slower=0.03`` to 0.03. Raises ValueError for anything else."""
    found = re.fullmatch(r"slower=([0-9]+(?:\.[0-9]+)?)(%?)", text.strip())
    value = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not 0 <= value < 1:
        raise ValueError(f"--fail-if: found {text!r}; allowed: slower=<percent>%, e.g. slower=3%")
    return value


def judge_gate(matches: Sequence[Match], unmatched: Sequence[Unmatched], limit: float) -> Gate:
    """Whether a slowdown beyond ``limit``, a fraction, is shown; nothing to compare fails too."""
    if not matches:
        why = unmatched[0].reason if unmatched else "B has no configuration"
        return Gate(True, f"nothing could be compared: {why}")
    slower = [
        m for m in matches
        if m.change == "slower" and m.ratio.interval and m.ratio.interval.high < 1 - limit
    ]  # fmt: skip
    if slower:
        worst = min(slower, key=lambda m: m.ratio.value)
        interval = worst.ratio.interval
        assert interval is not None
        return Gate(
            True,
            f"{worst.label} is slower by {1 - worst.ratio.value:.1%} "
            f"({confidence(interval)} interval {1 - interval.high:.1%} to "
            f"{1 - interval.low:.1%}), beyond the limit of {limit:.1%}"
            f"{f'; {len(slower) - 1} more' if slower[1:] else ''}",
        )
    blind = sorted((m for m in matches if _least(m) < 1 - limit), key=_least)
    if blind:
        each = "; ".join(f"{m.label} {_not_excluded(m)}" for m in blind[:MOST_NAMED])
        more = f"; and {len(blind) - MOST_NAMED} more" if blind[MOST_NAMED:] else ""
        return Gate(
            False,
            f"no slowdown beyond {limit:.1%} is shown, and none is excluded either for "
            f"{len(blind)} of {len(matches)} configurations: {each}{more}: add repeats",
            blind=True,
        )
    return Gate(False, f"no configuration is slower by {limit:.1%} or more")


def _least(match: Match) -> float:
    """The smallest ratio that is not excluded; 0 where nothing bounds it."""
    interval = match.ratio.interval
    return 0.0 if interval is None or bounds_nothing(interval) else interval.low


def _not_excluded(match: Match) -> str:
    least = _least(match)
    if least == 0:
        return "slower by any amount is not excluded"
    return f"slower by up to {1 - least:.1%} is not excluded"
