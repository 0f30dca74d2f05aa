"""Phases of a step as tables show them, and steps so long that they are set aside."""

from __future__ import annotations

from collections.abc import Mapping

from scalewise.analysis.configuration import Configuration
from scalewise.analysis.run import Run
from scalewise.analysis.step_figures import figures_of
from scalewise.analysis.steps import ASIDE_S, MAX_ASIDE, LongSteps, pipeline_of
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


_MOST_RUNS = 3
"""Runs whose long steps are told one by one in an answer."""


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
    long = figures_of(run.cell).long
    return long if long is not None and long.found else None


def _named(run: Run, long: LongSteps) -> str:
    """Which run, which steps, how long each: the longest three."""
    longest = sorted(long.found, key=lambda one: -one.seconds)[:MAX_ASIDE]
    each = [f"step {one.step} took {one.seconds:.1f} s on rank {one.rank}" for one in longest]
    more = len(long.found) - len(longest)
    each += [f"and {more} more of more than {ASIDE_S:g} s"] if more else []
    return f"{run.cell.planned.name}: {', '.join(each)}"
