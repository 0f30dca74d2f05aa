"""Where the time of a step went: parts in ms that add up to the step of one run.

Each step is followed along its critical path. Ranks meet at the reduction of gradients; the rank
that is last there made the step as long as it is. What it took beyond the rank that waits longest
is waiting, unless its GPU ran dry because its host was late: docs/method.md derives the rules, and
says what they cannot tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from scalewise.analysis.devices import Usage
from scalewise.analysis.run import Run
from scalewise.analysis.step_figures import figures_of
from scalewise.analysis.step_path import WORK, StepMeans
from scalewise.analysis.steps import ASIDE_S, MAX_ASIDE, mean_of_known, pipeline_of

Part = Literal[
    "device_work", "host_late", "loader", "copy", "transfer", "waiting", "optimizer",
    "callbacks", "between_steps", "stages", "contention", "long_steps", "untimed",
]  # fmt: skip


@dataclass(frozen=True)
class StepParts:
    """One run."""

    ms: Mapping[Part, float]
    """Mean ms a step; their sum is ``step_ms``."""
    step_ms: float
    """Mean over the timed steps of the slowest rank."""
    late_rank: int | None
    """The rank that the others wait for longest in all; None for one rank."""
    late_share: float
    """Its share of the time that they wait, 0 to 1."""
    path: StepMeans
    knows_activity: bool
    """Whether a GPU's idle time was measured; without it ``device_work`` holds some of the host's
    lateness. True on a CPU, where the host does the work."""


LATE_SHARE: Final = 0.75
"""Share of all waiting that is for one rank, from which that rank is named. Of two healthy ranks on
a busy host, one was last in 51 to 60 % of the steps."""
_TOLD_APART: Final = 0.2
"""Difference between ranks, in the share of steps in which they are last, from which their mean
idle times tell what a GPU idled in those steps."""


def measure_parts(run: Run) -> StepParts | None:
    """Parts of a step of ``run``; None where no step was timed."""
    steps = figures_of(run.cell).path
    if run.throughput is None or steps is None:
        return None
    line, step_ms = steps.timeline, run.throughput.step_time_ms.mean
    idle_ms = _idle_ms(run, steps) if line == "device" else None
    parts = _usual_parts(steps, idle_ms)
    if pipeline_of(run.cell):
        parts["stages"] = parts.pop("between_steps")
    parts["long_steps"] = steps.all_steps - steps.step
    # Ranks that do not meet differ in their steps, and the slowest one's is what is explained.
    parts["untimed"] += step_ms - steps.all_steps
    _take_averaging(run, parts)
    _take_callbacks(run, parts)
    late_rank, late_share = _latest(steps)
    _take_contention(run, parts, line, in_turns=late_share <= LATE_SHARE)
    return StepParts(
        ms=parts,
        step_ms=step_ms,
        late_rank=late_rank,
        late_share=late_share,
        path=steps,
        knows_activity=line == "host" or idle_ms is not None,
    )


def _usual_parts(steps: StepMeans, idle_ms: Sequence[float] | None) -> dict[Part, float]:
    """Parts that add up to the mean usual step; ``idle_ms`` is None where it is not known."""
    own, transfer, waits_too = steps.own, steps.transfer, steps.waits_too
    untimed = steps.step - sum(own.values()) - transfer - waits_too
    # The backward of the first rank may be the longer one, for having waited in it.
    late = {**steps.late, "backward": max(0.0, steps.late["backward"])}
    late_work = sum(late[name] for name in WORK)
    dry = min(max(0.0, late_work), _dry_ms(steps, idle_ms))
    waiting = late_work - dry + waits_too
    own = {name: ms - late[name] for name, ms in own.items()}
    for name in ("data_wait", "h2d", "other"):
        # Where its host takes no longer than the first one's, the phase itself is on the path.
        more = max(0.0, steps.host_late[name])
        waited = late[name] if steps.timeline == "host" else min(late[name], more)
        waiting += waited
        own[name] += late[name] - waited
    work = sum(own[name] for name in WORK)
    if work == 0:
        # A replayed graph has no phases: its device works, reductions included, or waits.
        own["forward"] = work = untimed
        untimed = 0.0
    idle_in_work = 0.0
    if idle_ms is not None:
        idle_in_work = min(work, max(0.0, (sum(idle_ms) - dry) / len(idle_ms)))
    kept = 1 - idle_in_work / work if work > 0 else 1.0
    return {
        "device_work": (own["forward"] + own["backward"]) * kept,
        "host_late": dry + idle_in_work,
        "loader": own["data_wait"],
        "copy": own["h2d"],
        "transfer": transfer,
        "waiting": waiting,
        "optimizer": own["optimizer"] * kept,
        "between_steps": own["other"],
        "contention": 0.0,
        "long_steps": 0.0,
        "untimed": untimed,
    }


def _dry_ms(steps: StepMeans, idle_ms: Sequence[float] | None) -> float:
    """Ms a step that the last rank's GPU idled in its work because its host was late."""
    if steps.timeline == "host" or steps.last_share is None:
        return 0.0
    if idle_ms is None or float(np.ptp(steps.last_share)) < _TOLD_APART:
        return max(0.0, steps.dry)
    # The slope of idling over being last.
    return max(0.0, float(np.polyfit(steps.last_share, idle_ms, 1)[0]))


def _idle_ms(run: Run, steps: StepMeans) -> list[float] | None:
    """Ms a step that each rank's GPU had no kernel while it should have computed.

    Time in which it waits for its loader, a copy or a callback is not in it. None unless the
    activity of every rank's GPU is known.
    """
    activity = _activity(run.usage)
    idle_phases = ("data_wait", "h2d") if pipeline_of(run.cell) else ("data_wait", "h2d", "other")
    waits_ms = [steps.device_phases[name] for name in idle_phases]
    if not activity.keys() >= set(range(len(steps.device_step))):
        return None
    return [
        max(0.0, step_ms * (1 - activity[rank]) - sum(each[rank] for each in waits_ms))
        for rank, step_ms in enumerate(steps.device_step)
    ]


def _activity(usage: Usage | None) -> dict[int, float]:
    """Share of the time in which each rank's GPU had a kernel, 0 to 1."""
    if usage is None or usage.source != "nvml":
        return {}
    return {
        one.device.rank: one.engine_activity_percent / 100
        for one in usage.devices
        if one.engine_activity_percent is not None and one.device.rank is not None
    }


def _latest(steps: StepMeans) -> tuple[int | None, float]:
    """The rank that the others wait for longest, and its share of all that they wait."""
    if steps.last_share is None:
        return None, 0.0
    rank = int(np.argmax(steps.waited))
    return rank, steps.waited[rank] / max(1e-9, sum(steps.waited))


def _take_averaging(run: Run, parts: dict[Part, float]) -> None:
    """Parameters that are averaged after a step are a transfer, whose time lies in ``other``."""
    sent = [r.communication for r in run.ranks if r.communication is not None]
    took = mean_of_known([one.ms_per_step for one in sent if one.what == "parameters"])
    if took is not None and "between_steps" in parts:
        ms = min(took, parts["between_steps"])
        parts["transfer"] += ms
        parts["between_steps"] -= ms


def _take_callbacks(run: Run, parts: dict[Part, float]) -> None:
    """At the end of an epoch, callbacks of the user's make one step long. Ranks have their mean."""
    left = sum(sum(r.callbacks_ms_per_step.values()) for r in run.ranks) / max(1, len(run.ranks))
    names: tuple[Part, ...] = ("between_steps", "long_steps")
    for name in names:
        ms = min(left, max(0.0, parts.get(name, 0.0)))
        if ms > 0:
            parts[name] -= ms
            parts["callbacks"] = parts.get("callbacks", 0.0) + ms
            left -= ms


def _take_contention(run: Run, parts: dict[Part, float], line: str, *, in_turns: bool) -> None:
    """What other processes had of the cores, taken from the parts that it can have delayed.

    What every rank was delayed lengthens its own work, in proportion; what the worst rank was
    delayed beyond that, the others wait for. Where ranks are late ``in_turns``, so are their
    delays, and all of them is waited for. A GPU computes on while its host has no core.
    """
    delays = contention_ms_by_rank(run)
    if not delays:
        return
    least, most = min(delays.values()), max(delays.values())
    own: tuple[Part, ...] = ("host_late", "loader", "callbacks", "between_steps")
    if line == "host":
        own = (
            "device_work", "optimizer", "loader", "copy", "callbacks", "between_steps", "stages"
        )  # fmt: skip
    total = sum(parts.get(name, 0.0) for name in own)
    waited = min(most if in_turns else most - least, max(0.0, parts["waiting"]))
    mine = min(least, most - waited, total)
    for name in own:
        if total > 0 and name in parts:
            parts[name] -= mine * parts[name] / total
    parts["waiting"] -= waited
    parts["contention"] = mine + waited


def contention_ms_by_rank(run: Run) -> dict[int, float]:
    """Ms a step that each rank's training thread waited for a core which others held: at least.

    The thread waits only while every core of its rank is taken. The rank's own other threads can
    have held all of them for no longer than their CPU time over the number of cores; what is left
    of the delay was somebody else's. Ranks that counted it only.
    """
    found = {}
    for rank in run.ranks:
        if rank.run_queue_ms_per_step is not None:
            own = (rank.other_threads_cpu_ms_per_step or 0.0) / max(1, len(rank.device.cores))
            found[rank.rank] = max(0.0, rank.run_queue_ms_per_step - own)
    return found


def long_step_figures(run: Run) -> dict[str, Any] | None:
    """The longest steps of a run, and whether its figures hold them; None where none is long."""
    long = figures_of(run.cell).long
    if long is None or not long.found:
        return None
    longest = sorted(long.found, key=lambda one: -one.seconds)[:MAX_ASIDE]
    each = [f"step {one.step} took {one.seconds:.1f} s on rank {one.rank}" for one in longest]
    more = len(long.found) - len(longest)
    each += [f"and {more} more of more than {ASIDE_S:g} s"] if more else []
    held = (
        "set aside from throughput, step times and phases; what the devices did meanwhile (power, "
        "energy, utilisation) stays in their figures"
        if long.are_set_aside
        else f"{len(long.found)} of {long.steps} steps are too many to be set aside: all figures "
        "hold them"
    )
    return {"named": ", ".join(each), "median_ms": long.median_ms, "held": held}
