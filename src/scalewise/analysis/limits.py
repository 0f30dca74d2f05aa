"""Where a multi-device step loses time against the ideal, in words with its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scalewise.analysis.pipeline import pipeline_of
from scalewise.analysis.runs import Configuration
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
