"""What stands for one configuration where two sweeps are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scalewise.analysis.identity import Difference
from scalewise.analysis.statistics import RatioEstimate

Change = Literal["faster", "slower", "no difference shown"]


@dataclass(frozen=True)
class Match:
    """The same configuration in both sweeps."""

    label: str
    ratio: RatioEstimate
    """Global samples/s of B over A. Its interval is at the level on which ``change`` was decided:
    it excludes 1 if and only if a change is shown."""
    p_value_holm: float | None
    """That the ratio is 1, adjusted for all matches; None with one run on a side."""
    change: Change
    detectable: float | None
    """The smallest ratio above 1 that such runs would show four times in five, at that level."""
    mixed: tuple[str, ...] = ()
    """Fields of the declared factor in which repeats of one side differ, in words."""


@dataclass(frozen=True)
class Unmatched:
    """A configuration of B with no counterpart in A."""

    label: str
    reason: str
    differing: tuple[Difference, ...] = ()
