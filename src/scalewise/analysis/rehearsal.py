"""Rehearsals: what one rank of N, run for real, says of all of them. Never a verdict of runs.

All ranks are taken to draw their steps from those of the one that was there. The jitter of a
network and the heat of a full host are missing. So what is said is *likely*, at 90 %, and its
interval is as wide as the runs' own and the errors of the score together (docs/rehearsal.md).

The score is how far each was from the same on devices that were there. Its errors are of the step,
and of the surplus: what a step takes beyond one N-th of a single device's. Beside them stands what
needs no rehearsal. All are shares, above 0 where too much was said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import geometric_mean, median
from typing import TYPE_CHECKING, Final, Literal

import scipy

from scalewise.analysis.communication import serial_fraction
from scalewise.analysis.comparability import (
    Difference,
    Identity,
    differences,
    grouped,
    grouped_alike,
    within,
)
from scalewise.analysis.comparison import find_link
from scalewise.analysis.configuration import Configuration, as_strong
from scalewise.analysis.figures import factor, interval_words
from scalewise.analysis.loss_budget import make_budget
from scalewise.analysis.scaling import rate_ratio
from scalewise.analysis.statistics import VERDICT_RUNS, Estimate, Interval, RatioEstimate
from scalewise.analysis.step_figures import figures_of
from scalewise.analysis.verdict import Verdict, wanted_speedup
from scalewise.config import Link, in_one_line
from scalewise.records import DataError, RehearsalRecord, build

if TYPE_CHECKING:
    from scalewise.analysis.summary import Analysis

LIKELY: Final = 0.90  # Confidence of a rehearsal's interval, and of what it calls likely.
Likelihood = Literal["likely pays", "likely does not pay", "cannot tell"]
Regime = Literal["GPU", "host", "CPU", "unknown"]
"""What the step of the rank that was there waits for."""
HOST_SHARE: Final = 0.02
"""Of a step that the GPU waits for its host, from which the host limits it."""
STEP_ERRORS: Final[Mapping[Regime, float]] = {"GPU": 0.035, "host": 0.12}
"""What a rehearsed step may be off by, beside the spread of its runs (docs/rehearsal.md). FSDP and
CUDA graphs, of which few were scored, have the larger one."""
LINKED_AT_CAP: Final = 1.014
"""A step at a GPU's power cap over a link faster than PCIe, over the rehearsed one: its clocks are
1 to 3 % lower at equal power. Median of ten cases of NVLink on six hosts (docs/rehearsal.md)."""


@dataclass(frozen=True)
class Rehearsal:
    """One rehearsed configuration, beside its single device and beside what was measured."""

    config: Configuration
    record: RehearsalRecord
    word: Likelihood
    reason: str
    """Why nothing can be told; else what is wanted."""
    single: Configuration | None = None
    """The same on one device that was there."""
    speedup: RatioEstimate | None = None
    """Of ``ranks`` devices over one, at 90 %; None without a comparable single device."""
    measured: Configuration | None = None
    """The same on as many devices that were there."""
    step_error: RatioEstimate | None = None
    """Rehearsed step over the measured one; None where that was not measured."""
    lateness: float = 1.0
    """A step of the slowest of all ranks, at their clocks, over one of the rank that was there."""

    @property
    def shown(self) -> RatioEstimate | None:
        """The speedup as a figure to read: of CPUs it means nothing, whatever its interval."""
        return None if self.config.is_cpu else self.speedup

    @property
    def step_time_ms(self) -> Estimate | None:
        own = self.config.estimate("step_time_ms")
        return own and own.scaled(self.lateness)

    @property
    def parameters(self) -> int:
        return self.config.rank_summaries[0].parameters_total

    def __str__(self) -> str:
        found = self.shown
        ends = f" ({interval_words(found)})" if found and found.interval else ""
        figure = f"{factor(found.value)}x{ends}, " if found else ""
        return f"{self.config.label}: {figure}{self.word}: {self.reason}."


def rehearsals(
    every: Sequence[Configuration], measured: Sequence[Configuration]
) -> tuple[Rehearsal, ...]:
    """Every configuration that was rehearsed, by its workload and the number of ranks."""
    timed = [one for one in measured if one.is_timed and one.values("global_samples_per_s")]
    found = [
        _rehearsal(config, record, timed)
        for config in every
        if (record := config.rehearsed) is not None
    ]
    alike = grouped(found, lambda one: (one.config.workload, one.record.link))
    return tuple(
        one for rows in alike.values() for one in sorted(rows, key=lambda row: row.record.ranks)
    )


def by_size(played: Sequence[Rehearsal]) -> Iterator[tuple[Rehearsal, ...]]:
    """Those of one link and number of ranks that differ in their model's size, smallest first."""
    for group in grouped_alike(played, lambda one: one.config.identity, "model"):
        for rows in grouped(group, lambda one: one.config.setting("model._target_")).values():
            if len({one.parameters for one in rows}) == len(rows) > 1:
                yield tuple(sorted(rows, key=lambda one: one.parameters))


def _rehearsal(
    config: Configuration, record: RehearsalRecord, timed: Sequence[Configuration]
) -> Rehearsal:
    whole = as_whole(config, record)
    wholes = [whole]
    if config.has_own_settings and not any(alike(whole, timed, 1)):
        divided = as_strong(config)  # a script may divide its batch among its ranks
        wholes.append(as_whole(divided, record))
        if any(alike(wholes[-1], timed, 1)):
            config, whole = divided, wholes[-1]
    measured = next(alike(whole, timed, record.ranks), None)
    single = next(alike(whole, timed, 1), None)
    limit = regime(config)
    late = _lateness(config, limit)
    found = Rehearsal(config, record, "cannot tell", "", single, measured=measured, lateness=late)
    if not config.values("global_samples_per_s"):
        why = config.runs[0].missing.get("throughput", "its steps were not timed")
        return replace(found, reason=why)
    if measured is not None:
        found = replace(found, step_error=rate_ratio(measured, config).scaled(late / record.ranks))
    if single is None:
        return replace(found, reason=_why_no_single(config, wholes, timed))
    if invalid := (*single.invalid, *config.invalid):
        return replace(found, reason=invalid[0].text)
    few = config.rehearsed_kind != "ddp" or config.setting("execution.kind") == "cudagraph"
    off = STEP_ERRORS["host" if few or limit != "GPU" else "GPU"]
    speedup = _widened(rate_ratio(config, single, LIKELY).scaled(record.ranks / late), off)
    word, reason = _judge(config, speedup, record.ranks)
    return replace(found, word=word, reason=reason, speedup=speedup)


def _lateness(config: Configuration, limit: Regime) -> float:
    """GPUs meet in each step, so the slowest counts. A host's queue of work bridges a late step."""
    figures = [figures_of(run.cell) for run in config.runs if run.throughput]
    late = [each.lateness if limit == "GPU" else each.host_lateness for each in figures]
    link, capped = _link(config), config.mean_of_devices("power_capped_share") or 0.0
    over_fast_link = isinstance(link, Link) and not link.through_host
    at_cap = limit == "GPU" and over_fast_link and capped >= 0.5
    return geometric_mean(late or [1.0]) * (LINKED_AT_CAP if at_cap else 1.0)


def _link(config: Configuration) -> Link | str:
    """The one it was rehearsed over, or what is wrong with its record."""
    try:
        return build(Link, config.setting("strategy.link"), "strategy.link")
    except DataError as error:
        return in_one_line(error)


def _why_no_single(
    config: Configuration, wholes: Sequence[Identity], timed: Sequence[Configuration]
) -> str:
    alone = [one for one in timed if one.devices == 1 and one.workload == config.workload]
    if not alone:
        return "no single-device cell of the same workload: add devices=1"
    each = (_apart(one, whole, 1) for one in alone for whole in wholes)
    return f"its single-device cell differs in {min(each, key=len)[0]}"


def as_whole(config: Configuration, record: RehearsalRecord) -> Identity:
    """The identity that the same would have on all of its devices."""
    result = config.runs[0].result
    ranks = record.ranks if result.scaling == "strong" else 1
    each = result.per_device_batch_size
    batch = {} if each is None else {"batch": str(each * ranks)}
    own = {name: value for name, value in config.identity.items() if not within(name, _PLAYED)}
    kind = {"strategy.kind": str(config.rehearsed_kind)}
    return {**own, **kind, **batch, "devices": str(record.ranks)}


_PLAYED = ("rehearsed", *(f"strategy.{key}" for key in ("name", "devices", "ranks", "link")))


def alike(whole: Identity, timed: Sequence[Configuration], devices: int) -> Iterator[Configuration]:
    """Those of ``timed`` that are the same as ``whole``, on so many devices."""
    strategy = {key: value for key, value in whole.items() if key.startswith("strategy.")}
    for one in timed:
        same = devices == 1 or strategy.items() <= one.identity.items()
        if one.devices == devices and same and not _apart(one, whole, devices):
            yield one


def _apart(one: Configuration, whole: Identity, devices: int) -> list[Difference]:
    own = one.identity
    if devices == 1 and one.has_own_settings:  # of one device it is either scaling
        own = {**own, "scaling": whole["scaling"]}
    return differences(own, whole, "devices")


def _widened(speedup: RatioEstimate, error: float) -> RatioEstimate:
    """With the error of the score in its interval, which the spread of runs knows nothing of."""
    if speedup.interval is None:
        return speedup
    runs = math.log(speedup.interval.high / speedup.interval.low) / 2
    half = math.hypot(runs, math.log1p(error))
    low, high = speedup.value * math.exp(-half), speedup.value * math.exp(half)
    return replace(speedup, interval=Interval(low, high, LIKELY))


def regime(config: Configuration) -> Regime:
    """What limits it; unknown where nobody saw when its GPU had work."""
    if config.is_cpu:
        return "CPU"
    budget = make_budget(config)
    if budget is None or not budget.knows_activity:
        return "unknown"
    # A host that waits for a core, or for a batch, makes its GPU wait.
    late = sum(budget.ms(part) or 0.0 for part in ("host_late", "contention", "loader"))
    return "host" if late >= HOST_SHARE * budget.measured_ms else "GPU"


_UNTOLD: Mapping[Regime, str] = {
    "CPU": "on CPUs a collective takes cores, which a rehearsal leaves idle",
    "unknown": "nobody saw whether its GPU waits for the host: time 3 s of steps or more",
}


def untold(config: Configuration) -> str | None:
    """Why nothing is told of it, however many its runs; None where they decide."""
    return _UNTOLD.get(regime(config))


def _judge(config: Configuration, speedup: RatioEstimate, ranks: int) -> tuple[Likelihood, str]:
    wanted = wanted_speedup(ranks)
    want = f"{factor(wanted)}x is wanted of {ranks}"
    if why := untold(config):
        return "cannot tell", why
    runs, interval = min(speedup.n), speedup.interval
    if interval is None or runs < VERDICT_RUNS:
        return "cannot tell", f"{runs} of {VERDICT_RUNS} runs"
    word: Likelihood = "cannot tell"
    if interval.low >= wanted:
        word = "likely pays"
    elif interval.high < wanted:
        word = "likely does not pay"
    doubt = _doubt_of_curve(config, word, ranks)
    return ("cannot tell", doubt) if doubt else (word, want)


def _doubt_of_curve(config: Configuration, word: Likelihood, ranks: int) -> str | None:
    """Why a curve of another number of devices does not carry ``word``; None where it does."""
    link = _link(config)
    if isinstance(link, str):
        return link
    of = link.ranks
    unsafe = "likely pays" if ranks > of else "likely does not pay"
    if link.name == "custom" or not link.through_host or ranks == of or word != unsafe:
        return None
    change = "slower" if ranks > of else "faster"
    return f"its link was measured between {of} devices, and may be {change} between {ranks}"


HANDFUL: Final = 5
"""Cases from which a share is worth an interval."""


@dataclass(frozen=True)
class Case:
    """One rehearsal beside what it stands for."""

    sweep: str
    rehearsal: Rehearsal
    measured: Configuration
    verdict: Verdict | None
    """Of the measured one; None where it is in no pair."""
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
    def strategy(self) -> str:
        """A blank and its strategy; empty for DDP."""
        kind = self.rehearsal.config.rehearsed_kind
        return "" if kind == "ddp" else f" {kind}"

    @property
    def family(self) -> str:
        """The class of its model, and its strategy."""
        target = str(self.measured.setting("model._target_") or self.measured.name("model"))
        return f"{target.rpartition('.')[2]}{self.strategy}"

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
    def apart(self) -> float | None:
        """How far two measured runs of one case are apart, in the median, as a share."""
        runs = (case.measured.values("step_time_ms") for case in self.all)
        shares = [max(two) / min(two) - 1 for each in runs for two in combinations(each, 2)]
        return median(shares) if shares else None

    @property
    def told(self) -> Share:
        """How many of the likely verdicts were measured too."""
        said = [case for case in self.all if case.rehearsal.word != "cannot tell"]
        return Share(sum(c.rehearsal.word == f"likely {c.verdict}" for c in said), len(said))

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
        if (case := _case(sweep, one, analysis)) is not None
    ]


def scores(found: Sequence[Case]) -> list[Score]:
    """The cases by family, regime and link; last all that the GPU limits, by strategy."""
    kinds = grouped(found, lambda case: f"{case.family}, {case.regime}, {case.link}")
    if len(kinds) > 1:
        limited = [case for case in found if case.regime == "GPU"]
        kinds |= grouped(limited, lambda case: f"all{case.strategy}, GPU")
    return [Score(kind, tuple(alike)) for kind, alike in kinds.items()]


def _case(sweep: str, one: Rehearsal, analysis: Analysis) -> Case | None:
    whole, ranks = as_whole(one.config, one.record), one.record.ranks
    single = one.single
    if one.measured is None or one.step_error is None or one.speedup is None or single is None:
        return None
    if one.measured.invalid:
        return None
    timed, pair = analysis.measured, analysis.pair(one.measured)
    speedup, error = rate_ratio(one.measured, single), one.step_error.value - 1
    known = (sweep, one, one.measured, pair.verdict if pair else None)
    result = one.config.runs[0].result
    shows = speedup.interval is not None and speedup.interval.high < ranks
    surplus = (ranks / one.speedup.value - 1) / (ranks / speedup.value - 1) - 1 if shows else None
    linear = speedup.value / ranks - 1
    if result.scaling == "weak":
        return Case(*known, error, surplus, linear, None, None)
    part = next(alike({**whole, "batch": str(result.per_device_batch_size)}, timed, 1), None)
    alone = rate_ratio(one.measured, part).value / ranks - 1 if part else None
    several = next((row for n in range(ranks - 1, 1, -1) for row in alike(whole, timed, n)), None)
    amdahl = speedup.value / _amdahl(several, single, ranks) - 1 if several else None
    return Case(*known, error, surplus, linear, alone, amdahl)


def _amdahl(several: Configuration, single: Configuration, ranks: int) -> float:
    """The speedup that Amdahl's law gives ``ranks``, through one device and ``several``."""
    serial = serial_fraction(rate_ratio(several, single).value, several.devices or 1)
    return 1 / (serial + (1 - serial) / ranks)
