"""Time of a run that no limit explains: long steps, hiccups, and ranks that wait for the last one.

None is a fault of anything by itself: what stops a host strikes healthy runs too, and a rank may be
last without being slow. Hiccups and waiting can be a quarter of all time, so the answer says what
they took. A long step takes seconds: :func:`~scalewise.analysis.steps.common_steps` sets it
aside where it is rare, and the answer names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scalewise.analysis.configuration import Configuration
from scalewise.analysis.run import Run
from scalewise.analysis.steps import (
    LONG_STEP_S,
    MAX_ASIDE,
    LongSteps,
    NotMeasuredError,
    common_steps,
    long_steps,
    pipeline_of,
    timeline,
)
from scalewise.records import PHASES

PHASE_WORDS: Mapping[str, str] = {
    "data_wait": "waiting for data",
    "h2d": "copying the batch to the device",
    "forward": "forward",
    "backward": "backward",
    "exposed_comm": "exposed communication",
    "optimizer": "the optimizer",
    "other": "callbacks and loops",
}

IDLE = "idle: waiting for other stages"
"""What is left of a step of a pipeline: its stages wait for one another, no callback runs."""

_WORTH_SAYING = 0.05
"""Share of a step below which an excess is not called the reason for anything."""


@dataclass(frozen=True)
class PhaseExcess:
    """A phase of a multi-device step against what ideal scaling would leave of it."""

    phase: str
    ms: float
    ideal_ms: float

    @property
    def excess_ms(self) -> float:
        return self.ms - self.ideal_ms


def phase_word(config: Configuration, phase: str) -> str:
    """What a phase of this configuration's steps is called."""
    if phase == "other" and any(pipeline_of(run.cell) for run in config.runs):
        return IDLE
    return PHASE_WORDS[phase]


def mean_anatomy(config: Configuration) -> tuple[dict[str, float], float, str] | None:
    """Mean ms of each measured phase and of the step over runs and ranks, and the timeline."""
    lines = ["device", "host"]
    for line in lines:
        means = [m for run in config.runs if run.anatomy and (m := run.anatomy.mean(line))]
        if means and all(m.step_ms for m in means):
            phases = {}
            for name in PHASES:
                values = [v for m in means if (v := m.phases_ms[name]) is not None]
                if values:
                    phases[name] = sum(values) / len(values)
            return phases, sum(m.step_ms or 0.0 for m in means) / len(means), line
    return None


def phase_excesses(multi: Configuration, single: Configuration) -> list[PhaseExcess]:
    """Every phase against its ideal, largest excess first; forward and backward as ``compute``.

    Ideal under strong scaling is the single device's time divided by the devices (each has that
    share of the batch), under weak scaling the same time; for the optimizer it is always the same
    time, and for communication zero.
    """
    ours, theirs = mean_anatomy(multi), mean_anatomy(single)
    if ours is None or theirs is None or ours[2] != theirs[2]:
        return []
    result = multi.runs[0].cell.result
    share = multi.runs[0].world_size if result and result.scaling == "strong" else 1
    before = _with_compute(theirs[0])
    ideals = {name: ms / (1 if name == "optimizer" else share) for name, ms in before.items()}
    found = [
        PhaseExcess(name, ms, 0.0 if name == "exposed_comm" else ideals.get(name, 0.0))
        for name, ms in _with_compute(ours[0]).items()
    ]
    return sorted(found, key=lambda e: -e.excess_ms)


def explain_loss(multi: Configuration, single: Configuration) -> str | None:
    """One clause on the phase that costs most against ideal scaling; None if none stands out."""
    excesses, ours = phase_excesses(multi, single), mean_anatomy(multi)
    if not excesses or ours is None:
        return None
    # The step of the tables, also where the phases' own sum differs from it in the last digit.
    figure = multi.estimate("step_time_ms")
    worst, step_ms = excesses[0], figure.value if figure else ours[1]
    if worst.excess_ms < _WORTH_SAYING * step_ms:
        return None
    of = f"{worst.ms:.3g} of {step_ms:.3g} ms a step"
    if worst.phase == "exposed_comm":
        return f"exposed communication takes {of}{_waiting(multi)}"
    if worst.phase == "compute":
        return f"forward and backward take {of}, {worst.ideal_ms:.3g} ms if they scaled"
    if worst.phase == "other" and phase_word(multi, "other") == IDLE:
        return f"waiting for the other stages of the pipeline takes {of}"
    return f"{PHASE_WORDS[worst.phase]} takes {of}, {worst.ideal_ms:.3g} ms if it scaled"


def _with_compute(phases: Mapping[str, float]) -> dict[str, float]:
    """Forward and backward shrink together or not at all: taken as one phase."""
    merged = {name: ms for name, ms in phases.items() if name not in ("forward", "backward")}
    if "forward" in phases and "backward" in phases:
        merged["compute"] = phases["forward"] + phases["backward"]
    return merged


def _waiting(multi: Configuration) -> str:
    splits = [r.anatomy.communication for r in multi.runs if r.anatomy and r.anatomy.communication]
    if not splits:
        return ""
    wait = sum(s.wait_ms for s in splits) / len(splits)
    if wait < _WORTH_SAYING * sum(s.mean_ms for s in splits) / len(splits):
        return ""
    return f", {wait:.3g} ms of it waiting for the slowest rank"


HICCUP_FACTOR = 3.0
"""A step beyond this many medians is a hiccup: noise of single steps stays below it."""

WORTH_SAYING = 0.10
"""Share of all time from which hiccups, or waiting for the last rank, stand in the answer."""

LATE_MOSTLY = 0.5
"""Share of the steps from which a rank that is last is named as the one waited for."""

_MOST_RUNS = 3
"""Runs whose hiccups or long steps are told one by one in an answer."""


def long_step_line(run: Run) -> str | None:
    """The long steps of one run, and whether its figures hold them; None where there are none."""
    long = _long_steps_of(run)
    if long is None:
        return None
    held = (
        "set aside from throughput, step times and phases; what the devices did meanwhile (power, "
        "energy, utilisation) stays in their figures"
        if long.are_set_aside
        else f"{len(long.found)} of {long.steps} steps are too many to be set aside: all figures "
        "hold them"
    )
    return f"long_step: {_named(run, long)} (median {long.median_ms:.3g} ms); {held}"


def long_step_clause(config: Configuration) -> str | None:
    """The same for an answer, in few words."""
    found = [(run, long) for run in config.runs if (long := _long_steps_of(run))]
    if not found:
        return None
    said = [_named(run, long) for run, long in found[:_MOST_RUNS]]
    more = len(found) - len(said)
    said += [f"and in {more} more run{'s' if more > 1 else ''}"] if more else []
    return f"long_step: {'; '.join(said)}"


def _long_steps_of(run: Run) -> LongSteps | None:
    """None where there are none, or no step."""
    try:
        long = long_steps(run.cell.steps, run.world_size)
    except NotMeasuredError:
        return None
    return long if long.found else None


def _named(run: Run, long: LongSteps) -> str:
    """Which run, which steps, how long each: the longest three."""
    longest = sorted(long.found, key=lambda one: -one.seconds)[:MAX_ASIDE]
    each = [f"step {one.step} took {one.seconds:.1f} s on rank {one.rank}" for one in longest]
    more = len(long.found) - len(longest)
    each += [f"and {more} more of more than {LONG_STEP_S:g} s"] if more else []
    return f"{run.cell.planned.name}: {', '.join(each)}"


@dataclass(frozen=True)
class Hiccups:
    """The steps of one run that take more than three medians of it."""

    count: int
    steps: int
    """All timed steps."""
    events: int
    """Separate occasions: hiccups in a row are one."""
    first_step: int
    excess_ms: float
    """What they take beyond the median, in ms a step of all steps."""
    mean_ms: float
    median_ms: float
    longest_ms: float
    share: float
    """Of all timed time, whole."""

    @property
    def excess_share(self) -> float:
        """Of all timed time, what they take beyond the median."""
        return self.excess_ms / self.mean_ms


def hiccups_of(run: Run) -> Hiccups | None:
    """Hiccups of the slowest rank in each step; None where there are none, or no step."""
    try:
        ranks = common_steps(run.cell.steps, run.world_size)
    except NotMeasuredError:
        return None
    times = np.max([s.column("step", timeline(ranks)) for s in ranks], axis=0)
    numbers, median = ranks[0].rows["step"], float(np.median(times))
    long = times > HICCUP_FACTOR * median
    if not long.any():
        return None
    return Hiccups(
        count=int(long.sum()),
        steps=len(times),
        events=1 + int((np.diff(numbers[long]) > 1).sum()),
        first_step=int(numbers[long][0]),
        excess_ms=float((times[long] - median).sum()) / len(times),
        mean_ms=float(times.mean()),
        median_ms=median,
        longest_ms=float(times.max()),
        share=float(times[long].sum() / times.sum()),
    )


def hiccups(config: Configuration) -> tuple[tuple[Run, Hiccups], ...]:
    """Runs in which hiccups take a tenth of all time beyond the median, in order."""
    each = ((run, hiccups_of(run)) for run in config.runs)
    return tuple((run, one) for run, one in each if one and one.excess_share > WORTH_SAYING)


def hiccup_line(config: Configuration) -> str | None:
    """What hiccups took in each run; None where it is little."""
    found = hiccups(config)
    if not found:
        return None
    told = [_told(run, one, len(config.runs)) for run, one in found[:_MOST_RUNS]]
    more = len(found) - len(told)
    told += [f"and so in {more} more run{'s' if more > 1 else ''}"] if more else []
    return (
        f"hiccups: {'; '.join(told)}: the mean is no typical step; what interrupts the host in "
        "between has to be found"
    )


def hiccup_clause(config: Configuration) -> str | None:
    """The same for an answer, in few words."""
    found = hiccups(config)
    if not found:
        return None
    shares = sorted(100 * one.share for _, one in found)
    ends = " to ".join(dict.fromkeys(f"{share:.0f}" for share in (shares[0], shares[-1])))
    runs = f" in {len(found)} of {len(config.runs)} runs" if len(config.runs) > 1 else ""
    return f"long steps took {ends} % of the time of {config.label}{runs}"


def _told(run: Run, one: Hiccups, runs: int) -> str:
    where = f" in repeat {run.cell.planned.repeat}" if runs > 1 else ""
    # The step of the tables, which is that of the slowest rank over the run.
    times = run.throughput.step_time_ms if run.throughput else None
    typical = f"; mean step {times.mean:.3g} ms, median {times.p50:.3g} ms" if times else ""
    return (
        f"{one.count} of {one.steps} steps took {one.share:.0%} of the time{where} (the first at "
        f"step {one.first_step}{typical})"
    )


def wait_clause(config: Configuration) -> str | None:
    """What each rank waits for the last one, where the mean is a tenth of the step; else None."""
    waits = [w for run in config.runs if (w := rank_waits_ms(run)) is not None]
    step = config.estimate("step_time_ms")
    if not waits or step is None or len({len(w) for w in waits}) > 1:
        return None
    each: npt.NDArray[np.float64] = np.mean(waits, axis=0)
    if not float(each.mean()) > WORTH_SAYING * step.value:
        return None
    told = ", ".join(f"rank {rank}: {ms:.3g}" for rank, ms in enumerate(each))
    return (
        f"ranks wait {float(each.mean()):.3g} of {step.value:.3g} ms a step for the last of them "
        f"({told}{_mostly_last(config.runs)})"
    )


def rank_waits_ms(run: Run) -> npt.NDArray[np.float64] | None:
    """Mean ms a step that each rank waits at the end of backward for the last, shape ``[ranks]``.

    Exposed communication beyond that of the rank that waits for nobody (docs/method.md). None for
    one rank, and where it was not timed.
    """
    try:
        ranks = common_steps(run.cell.steps, run.world_size)
    except NotMeasuredError:
        return None
    exposed = np.stack([one.column("exposed_comm", timeline(ranks)) for one in ranks])
    exposed = exposed[:, ~np.isnan(exposed).any(axis=0)]
    if len(ranks) < 2 or exposed.size == 0:
        return None
    waits: npt.NDArray[np.float64] = (exposed - exposed.min(axis=0)).mean(axis=1)
    return waits


def _mostly_last(runs: Sequence[Run]) -> str:
    """The rank that is last in most steps, if it is the same one in most runs."""
    last = [
        run.balance.slowest_rank
        for run in runs
        if run.balance is not None and run.balance.slowest_share > LATE_MOSTLY
    ]
    rank = max(last, key=last.count, default=None)
    if rank is None or 2 * last.count(rank) <= len(runs):
        return ""
    often = f" in {last.count(rank)} of {len(runs)} runs" if len(runs) > 1 else ""
    return f"; rank {rank} is last in most steps{often}"
