"""The score of rehearsals: how far each was from the same on devices that were there.

Errors are of the step, and of the surplus: what a step takes beyond one N-th of a single device's.
Beside them stands what needs no rehearsal. All are shares, above 0 where too much was said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import scipy

from scalewise.analysis.communication import serial_fraction
from scalewise.analysis.comparability import grouped
from scalewise.analysis.comparison import find_link
from scalewise.analysis.configuration import Configuration
from scalewise.analysis.rehearsal import Regime, Rehearsal, alike, as_whole, regime
from scalewise.analysis.scaling import rate_ratio
from scalewise.analysis.statistics import Interval
from scalewise.analysis.summary import Analysis

HANDFUL: Final = 5
"""Cases from which a share is worth an interval."""


@dataclass(frozen=True)
class Case:
    """One rehearsal beside what it stands for."""

    sweep: str
    rehearsal: Rehearsal
    measured: Configuration
    single: Configuration
    step: float
    """Error of the rehearsed step, as a share of the measured one."""
    surplus: float | None
    """Error of its surplus over one device; None where the measured one may be none."""
    linear: float
    """Error of the step that N times one device's rate would give."""
    alone: float | None
    """Error of a step without communication, where that is another one: under strong scaling, of a
    single device of such a batch."""
    amdahl: float | None
    """Error of Amdahl's law through one device and the most below N; None without those."""

    @property
    def family(self) -> str:
        """The class of its model."""
        target = str(self.measured.setting("model._target_") or self.measured.name("model"))
        return target.rpartition(".")[2]

    @property
    def regime(self) -> Regime:
        """As the rehearsal shows it: what is known before there are more devices."""
        return regime(self.rehearsal.config)

    @property
    def link(self) -> str:
        """How the measured devices are joined, and whose times were emulated for that."""
        joined = find_link(self.measured).removesuffix(", an emulated PCIe")
        curve = "measured" if self.rehearsal.record.link == "doctor" else "named"
        return ", ".join(filter(None, (joined, f"{curve} curve")))

    @property
    def host(self) -> str:
        known = self.measured.runs[0].cell.provenance
        return known.host if known and known.host else ""

    @property
    def covered(self) -> bool | None:
        """Whether the interval of the rehearsal holds the measured speedup; None without one."""
        speedup, ranks = self.rehearsal.speedup, self.rehearsal.record.ranks
        if speedup is None or speedup.interval is None:
            return None
        return speedup.interval.low <= ranks * (1 + self.linear) <= speedup.interval.high


@dataclass(frozen=True)
class Share:
    """``hits`` of ``n``, with Wilson's interval of 95 % from a handful on."""

    hits: int
    n: int

    @property
    def interval(self) -> Interval | None:
        if self.n < HANDFUL:
            return None
        found = scipy.stats.binomtest(self.hits, self.n).proportion_ci(0.95, "wilson")
        return Interval(float(found.low), float(found.high))


@dataclass(frozen=True)
class Score:
    """What cases of one kind come to."""

    kind: str
    all: tuple[Case, ...]

    @property
    def cases(self) -> int:
        return len(self.all)

    @property
    def models(self) -> int:
        return len({case.measured.name("model") for case in self.all})

    @property
    def hosts(self) -> int:
        return len({case.host for case in self.all})

    def middle(self, error: str) -> float | None:
        """Median of the errors' sizes."""
        values = (getattr(case, error) for case in self.all)
        sizes = [abs(value) for value in values if value is not None]
        return median(sizes) if sizes else None

    @property
    def worst(self) -> float:
        """Largest error of a step."""
        return max(abs(case.step) for case in self.all)

    @property
    def covered(self) -> Share:
        """How many of the intervals held what was measured."""
        known = [case.covered for case in self.all if case.covered is not None]
        return Share(sum(known), len(known))


def cases(analyses: Iterable[tuple[str, Analysis]]) -> list[Case]:
    """Every rehearsal that stands beside the same, measured on one device and on as many."""
    return [
        case
        for sweep, analysis in analyses
        for one in analysis.rehearsals
        if (case := _case(sweep, one, analysis.measured)) is not None
    ]


def scores(found: Sequence[Case]) -> list[Score]:
    """The cases by family, regime and link; last all that the GPU limits, of any."""
    kinds = grouped(found, lambda case: f"{case.family}, {case.regime}, {case.link}")
    limited = tuple(case for case in found if case.regime == "GPU")
    every = [Score("all, GPU", limited)] if limited and len(kinds) > 1 else []
    return [*(Score(kind, tuple(alike)) for kind, alike in kinds.items()), *every]


def _case(sweep: str, one: Rehearsal, timed: Sequence[Configuration]) -> Case | None:
    whole, ranks = as_whole(one.config, one.record), one.record.ranks
    single = one.single
    if one.measured is None or one.step_error is None or one.speedup is None or single is None:
        return None
    if one.measured.invalid:
        return None
    speedup, error = rate_ratio(one.measured, single), one.step_error.value - 1
    result = one.config.result
    assert result is not None, "a speedup has runs"
    shows = speedup.interval is not None and speedup.interval.high < ranks
    surplus = (ranks / one.speedup.value - 1) / (ranks / speedup.value - 1) - 1 if shows else None
    linear = speedup.value / ranks - 1
    if result.scaling == "weak":
        return Case(sweep, one, one.measured, single, error, surplus, linear, None, None)
    share = {**whole, "batch": str(result.per_device_batch_size)}
    part = next(alike(share, timed, 1), None)
    alone = rate_ratio(one.measured, part).value / ranks - 1 if part else None
    fewer = (each for n in range(ranks - 1, 1, -1) for each in alike(whole, timed, n))
    several = next(fewer, None)
    amdahl = speedup.value / _amdahl(several, single, ranks) - 1 if several else None
    return Case(sweep, one, one.measured, single, error, surplus, linear, alone, amdahl)


def _amdahl(several: Configuration, single: Configuration, ranks: int) -> float:
    """The speedup that Amdahl's law gives ``ranks``, through one device and ``several``."""
    serial = serial_fraction(rate_ratio(several, single).value, several.devices or 1)
    return 1 / (serial + (1 - serial) / ranks)
