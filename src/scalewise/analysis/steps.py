"""Throughput and step time of one run, from the step records of its ranks.

``global samples/s = samples fed by all ranks in the timed steps / time of the slowest rank``.
Warm-up steps are left out, and a step counts only if every rank recorded its time: a rank whose
file was cut off must not make the others look faster. A few long steps are set aside, on all ranks
alike: a process that was stopped, a host that froze. Time and samples of such a step count nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from scalewise.analysis.model import CellRecords
from scalewise.records import PHASES, PipelineRecord, StepSeries, sum_over_shards

P = ParamSpec("P")
T = TypeVar("T")
LONG_MEDIANS: Final = 3.0
"""A step beyond so many medians is long, and a loss: noise of single steps stays below it."""
STALL_MS: Final = 100.0
"""What a long step of every rank at once takes beyond the median to be a stall of all ranks. In the
31 runs on several H200s that a second context stalled, the stall took 133 to 447 ms; steps of all
ranks that were long for another reason took at most 66 ms, on one GPU and on CPUs at most 17."""

ASIDE_S: Final = 2.0
"""A long step beyond this is set aside: a process that was stopped, a host that froze."""
MAX_ASIDE = 3  # Long steps of a run that are set aside at most.
MAX_ASIDE_SHARE = 0.01
"""Of the timed steps, as MAX_ASIDE. More long steps are how the program runs: all of them count."""
LEAST_FOR_P99 = 100
"""Steps; of fewer a 99th percentile is the longest of them."""


class NotMeasuredError(Exception):
    """A number that the records do not carry; the message says why."""


def take(
    missing: dict[str, str], name: str, measure: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T | None:
    """What ``measure`` gives; None where it is not measured, with the reason in ``missing``."""
    try:
        return measure(*args, **kwargs)
    except NotMeasuredError as reason:
        missing[name] = str(reason)
        return None


@dataclass(frozen=True)
class StepTimes:
    """Times of the steps of one run in ms. Steps are correlated: these describe the run only."""

    mean: float
    p50: float
    p99: float | None
    """None with its reason in ``missing`` for fewer than 100 steps, of which it is the maximum."""
    n: int
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Throughput:
    """How fast one run trained."""

    global_samples_per_s: float | None
    """None where nobody could count what the steps trained on."""
    samples: int | None
    """Fed by all ranks in the timed steps."""
    seconds: float
    """What those steps took on the slowest rank."""
    slowest_rank: int
    steps: int
    timeline: str
    """``device`` where every rank timed its device, else ``host``."""
    step_time_ms: StepTimes
    """Of the slowest rank."""


@dataclass(frozen=True)
class LongStep:
    """A timed step of more than two seconds and three medians of its run."""

    step: int
    rank: int
    """On which it took longest."""
    seconds: float


@dataclass(frozen=True)
class LongSteps:
    """All long steps of a run, in their order."""

    found: tuple[LongStep, ...]
    steps: int
    """All timed steps."""
    median_ms: float
    """Of the slowest rank in each step."""

    @property
    def are_set_aside(self) -> bool:
        """Whether they are so few that the figures of the run are those of the other steps."""
        return 0 < len(self.found) <= min(MAX_ASIDE, MAX_ASIDE_SHARE * self.steps)


def without(ranks: Sequence[StepSeries], long: LongSteps) -> tuple[StepSeries, ...]:
    """The aligned steps of ``ranks`` but for the ``long`` ones, where these are set aside."""
    if not long.are_set_aside:
        return tuple(ranks)
    kept = ~np.isin(ranks[0].rows["step"], [one.step for one in long.found])
    return tuple(one.select(kept) for one in ranks)


def timed_steps(series: Sequence[StepSeries], world_size: int) -> tuple[StepSeries, ...]:
    """The timed steps that all ``world_size`` ranks recorded, one series a rank, aligned.

    Raises :class:`NotMeasuredError` if a rank is missing or no step is left.
    """
    return aligned_steps([one.timed() for one in series], world_size, timeline(series))


def find_long_steps(ranks: Sequence[StepSeries]) -> LongSteps:
    """The long ones among the aligned steps of all ranks."""
    line = timeline(ranks)
    times_ms = np.stack([one.column("step", line) for one in ranks])
    slowest_ms = times_ms.max(axis=0)
    median_ms = float(np.median(slowest_ms))
    found = tuple(
        LongStep(
            int(ranks[0].rows["step"][i]),
            ranks[int(times_ms[:, i].argmax())].rank,
            float(slowest_ms[i]) / 1e3,
        )
        for i in np.flatnonzero(slowest_ms > max(1e3 * ASIDE_S, LONG_MEDIANS * median_ms))
    )
    return LongSteps(found, len(slowest_ms), median_ms)


def aligned_steps(
    series: Sequence[StepSeries], world_size: int, line: str
) -> tuple[StepSeries, ...]:
    """The steps that all ``world_size`` ranks timed on ``line``, one series a rank.

    Raises :class:`NotMeasuredError` if a rank is missing or there is no such step.
    """
    found = sorted(s.rank for s in series)
    if found != list(range(world_size)):
        names = ", ".join(map(str, found)) or "none"
        raise NotMeasuredError(f"step records of rank {names} found, of {world_size} ranks")
    kept = [
        one.select(~np.isnan(one.column("step", line)))
        for one in sorted(series, key=lambda s: s.rank)
    ]
    steps = [one.rows["step"] for one in kept]
    shared = steps[0]
    for own in steps[1:]:
        if not np.array_equal(shared, own):
            shared = np.intersect1d(shared, own)
    if len(shared) == 0:
        raise NotMeasuredError(
            "no timed step: all were warm-up, or had no time; a run takes more than warmup_steps"
        )
    return tuple(
        one if len(own) == len(shared) else one.select(np.isin(own, shared))
        for one, own in zip(kept, steps, strict=True)
    )


def timeline(series: Sequence[StepSeries]) -> str:
    """``device`` if every rank timed its device, else ``host``: timelines are never mixed."""
    return "device" if series and all(s.timeline == "device" for s in series) else "host"


def measure_throughput(
    ranks: Sequence[StepSeries], data_shards: Sequence[int] | None = None
) -> Throughput:
    """Global samples/s and step times of a run, from the common steps of all its ranks.

    ``data_shards`` is the part of the data each rank fed, in the order of ranks: samples of ranks
    that share one count once. None: each fed a part of its own.

    Raises :class:`NotMeasuredError` with the reason where the records do not carry it.
    """
    line = timeline(ranks)
    times = [one.column("step", line) for one in ranks]
    totals_ms = [float(t.sum()) for t in times]
    slowest = int(np.argmax(totals_ms))
    seconds = totals_ms[slowest] / 1e3
    samples = sum_over_shards([int(one.rows["samples"].sum()) for one in ranks], data_shards)
    if seconds <= 0:
        raise NotMeasuredError("the timed steps took no time at all: the step clock did not run")
    return Throughput(
        global_samples_per_s=samples / seconds if samples else None,
        samples=samples or None,
        seconds=seconds,
        slowest_rank=ranks[slowest].rank,
        steps=len(times[slowest]),
        timeline=line,
        step_time_ms=describe_steps(times[slowest]),
    )


def epoch_times_s(series: Sequence[StepSeries]) -> tuple[tuple[int, float], ...]:
    """Each whole epoch, and the seconds of training in it.

    The sum of the steps of the rank that took longest, on the host's clock: between epochs the
    device has nothing to do, and validation is no part of it. An epoch of fewer steps than another
    was cut off by ``max_steps`` and is left out. Empty where ranks have unlike epochs.
    """
    ranks: list[dict[int, float]] = []
    for one in series:
        epoch = one.rows["epoch"]
        firsts = np.flatnonzero(np.diff(epoch, prepend=-1))
        steps = np.diff(firsts, append=len(epoch))
        took_s = np.add.reduceat(one.column("step", "host"), firsts) / 1e3 if len(epoch) else firsts
        whole = steps == steps.max(initial=0)
        ranks.append(dict(zip(epoch[firsts][whole].tolist(), took_s[whole].tolist(), strict=True)))
    if len({tuple(rank) for rank in ranks}) != 1:
        return ()
    return tuple((epoch, max(rank[epoch] for rank in ranks)) for epoch in ranks[0])


def describe_steps(times_ms: npt.NDArray[np.float64]) -> StepTimes:
    """Mean, median and 99th percentile of step times in ms, shape ``[steps]``."""
    n, (p50, p99) = len(times_ms), np.percentile(times_ms, [50, 99])
    if n >= LEAST_FOR_P99:
        return StepTimes(float(times_ms.mean()), float(p50), float(p99), n)
    missing = {"p99": f"{n} timed steps: a 99th percentile needs {LEAST_FOR_P99}"}
    return StepTimes(float(times_ms.mean()), float(p50), None, n, missing)


@dataclass(frozen=True)
class RankAnatomy:
    """Mean ms a step of one rank on one timeline."""

    rank: int
    timeline: str
    """``host`` or ``device``: never added to one another."""
    phases_ms: Mapping[str, float | None]
    """Every name of ``PHASES``; None where the phase was not measured."""
    step_ms: float | None


@dataclass(frozen=True)
class ExposedCommunication:
    """Mean ms a step between the last gradient bucket ready and the end of backward."""

    mean_ms: float
    """Over ranks, waiting included."""
    transfer_ms: float
    """What the rank that waits for nobody spends: the smallest of a step over the ranks."""
    wait_ms: float
    """The rest: waiting for the slowest rank, mean over ranks."""
    timeline: str


@dataclass(frozen=True)
class Anatomy:
    """The anatomy of one run."""

    ranks: tuple[RankAnatomy, ...]
    """Every rank on every timeline that was recorded."""
    communication: ExposedCommunication | None
    """None where nothing is reduced."""

    def mean(self, line: str) -> RankAnatomy | None:
        """Mean over the ranks on timeline ``line``; None if it was not recorded."""
        ranks = [one for one in self.ranks if one.timeline == line]
        return mean_anatomy(ranks) if ranks else None


def mean_anatomy(each: Sequence[RankAnatomy]) -> RankAnatomy:
    """Mean over ranks, or over means of runs, on one timeline."""
    phases = {name: mean_of_known([one.phases_ms[name] for one in each]) for name in PHASES}
    return RankAnatomy(-1, each[0].timeline, phases, mean_of_known([one.step_ms for one in each]))


def divided_steps(ranks: Sequence[StepSeries]) -> tuple[StepSeries, ...]:
    """As many steps, each undivided one replaced by the last divided one of all ranks before it.

    So a divided step weighs as many as it stands for: those at the start are divided more often.
    All stay as they are where none is divided.
    """
    known = ~np.any([np.isnan(one.column("other", "host")) for one in ranks], axis=0)
    if known.all() or not known.any():
        return tuple(ranks)
    stands = np.flatnonzero(known)[np.maximum(known.cumsum() - 1, 0)]
    return tuple(replace(one, rows=one.rows[stands]) for one in ranks)


def measure_anatomy(ranks: Sequence[StepSeries]) -> Anatomy:
    """Mean ms a step for every phase, timeline and rank, over the common steps of all ranks."""
    lines = ["host"] + (["device"] if all(r.timeline == "device" for r in ranks) else [])
    anatomies = tuple(
        RankAnatomy(
            one.rank,
            line,
            {name: _present_mean(one.column(name, line)) for name in PHASES},
            _present_mean(one.column("step", line)),
        )
        for line in lines
        for one in ranks
    )
    return Anatomy(anatomies, exposed_communication(ranks, lines[-1]))


def exposed_communication(ranks: Sequence[StepSeries], line: str) -> ExposedCommunication | None:
    """Exposed communication split into transfer and waiting by comparing aligned ranks.

    In a synchronous all-reduce the rank that arrives last waits for nobody, so its exposed time
    is the transfer; what the other ranks spend beyond it is waiting (docs/method.md).
    """
    exposed = np.stack([one.column("exposed_comm", line) for one in ranks])
    exposed = exposed[:, ~np.isnan(exposed).any(axis=0)]
    if exposed.size == 0:
        return None
    transfer = float(exposed.min(axis=0).mean())
    mean = float(exposed.mean())
    return ExposedCommunication(mean, transfer, mean - transfer, line)


def _present_mean(values: npt.NDArray[np.float64]) -> float | None:
    absent = np.isnan(values)
    present = values[~absent] if absent.any() else values
    return float(present.mean()) if present.size else None


def mean_of_known(values: Sequence[float | None]) -> float | None:
    """The mean of those that are known; None if none is."""
    present = [v for v in values if v is not None]
    return sum(present) / len(present) if present else None


def pipeline_of(cell: CellRecords) -> PipelineRecord | None:
    """The schedule of the first rank; None where there is no pipeline."""
    return cell.result.ranks[0].pipeline if cell.result and cell.result.ranks else None
