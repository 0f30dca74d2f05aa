"""Looking at the data after every round without being fooled by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from scalewise.analysis.statistics import RatioEstimate, Runs, estimate_ratio, in_pairs

VERDICT_RUNS: Final = 3
"""Pairs of runs, or runs a side, below which nothing is decided: two that agree by chance give an
interval that covers the truth far less often than it says where runs are slow now and then."""

CAP: Final = 20
PRECISION: Final = 0.02

_SHARE_OF_A_LOOK: Final = 0.2


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


def look_confidence(confidence: float = 0.95) -> float:
    """Confidence of the interval of one look, so that all looks together hold ``confidence``.

    Whoever looks at 95 % after every round, and stops where it suits, is wrong far more often than
    5 %: each look is another chance to be fooled. So each spends a fifth of the error, 1 %,
    whichever it is: from the third round to the twentieth the interval at the stop then covers the
    truth in 97 of 100 simulated cases, and in 93 where the truth is the edge itself
    (``benchmarks/interval_coverage.py``; table in docs/statistics.md). No schedule has to be kept:
    a sweep may be interrupted, and end at any round. What no rule can correct is noise that strikes
    only one side.
    """
    return 1 - _SHARE_OF_A_LOOK * (1 - confidence)


def estimate_at(multi: Runs, single: Runs, confidence: float = 0.95) -> RatioEstimate:
    """The ratio of data that are looked at after every round.

    Its interval carries ``confidence``, because that is what it holds over all looks.
    """
    look = estimate_ratio(multi, single, look_confidence(confidence))
    return replace(look, interval=look.interval and replace(look.interval, confidence=confidence))


def count_pairs(multi: Runs, single: Runs) -> int:
    """Pairs of runs, or where there are none the runs of the side that has fewest."""
    a, b, _ = in_pairs(multi, single)
    return min(len(a), len(b))
