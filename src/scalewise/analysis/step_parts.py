"""Where the time of a step went: parts in ms that add up to the step of one run.

Each step is followed along its critical path. Ranks meet at the reduction of gradients; the rank
that is last there made the step as long as it is. What it took beyond the rank that waits longest
is waiting, unless its GPU ran dry because its host was late: docs/method.md derives the rules, and
says what they cannot tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from scalewise.analysis.devices import Usage
from scalewise.analysis.run import Run
from scalewise.analysis.steps import NotMeasuredError, common_steps, pipeline_of, timeline
from scalewise.records import StepSeries

Part = Literal[
    "device_work", "host_late", "loader", "copy", "transfer", "waiting", "optimizer",
    "between_steps", "stages", "contention", "long_steps", "untimed",
]  # fmt: skip

LONG_MEDIANS: Final = 3.0
"""A step beyond so many medians is long: noise of single steps stays below it."""

CAUGHT_UP: Final = 0.25
"""Share of the host's fetch time that the GPU's marks are apart from which it had caught up: with
work queued they are 0.01 ms apart, else as far as on the host."""

_WORK: Final = ("forward", "backward", "optimizer")
_OWN: Final = ("data_wait", "h2d", *_WORK, "other")
"""Phases of a rank's own; ``exposed_comm`` is shared."""

Floats = npt.NDArray[np.float64]


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
    long_steps: int
    """Steps beyond three medians."""
    longest_ms: float
    steps: int
    knows_activity: bool
    """Whether a GPU's idle time was measured; without it ``device_work`` holds some of the host's
    lateness. True on a CPU, where the host does the work."""


LATE_SHARE: Final = 0.75
"""Share of all waiting that is for one rank, from which that rank is named. Of two healthy ranks on
a busy host, one was last in 51 to 60 % of the steps."""

RARE: Final = 0.2
"""Share of long steps up to which they are exceptions; beyond, the steps are of two kinds."""

_TOLD_APART: Final = 0.2
"""Difference between ranks, in the share of steps in which they are last, from which their mean
idle times tell what a GPU idled in those steps."""


@dataclass(frozen=True)
class _Steps:
    """The steps of a run, each seen from the rank that is last in it; times in ms.

    Own phases, ``transfer`` and ``waits_too`` add up to the step; arrays are ``[steps]``.
    """

    step: Floats
    own: Mapping[str, Floats]
    """Phases of the last rank, by the names of :data:`_OWN`."""
    transfer: Floats
    """From the last gradient to the end of the reduction, on the rank where that is shortest."""
    waits_too: Floats
    """What the last rank waits in the reduction all the same, for another one's backward."""
    late: Mapping[str, Floats]
    """By phase, what the last rank takes beyond the one that waits longest."""
    host_late: Mapping[str, Floats]
    """The same on the hosts' clocks."""
    ran_dry: npt.NDArray[np.bool_]
    """Whether the last rank's GPU began with nothing queued: its host set the pace."""
    last: npt.NDArray[np.int64] | None
    """The rank that is last; None where ranks do not meet."""


def measure_parts(run: Run) -> StepParts | None:
    """Parts of a step of ``run``; None where no step was timed."""
    if run.throughput is None:
        return None
    try:
        ranks = common_steps(run.cell.steps, run.world_size)
    except NotMeasuredError:
        return None
    line, step_ms = timeline(ranks), run.throughput.step_time_ms.mean
    steps = _steps(ranks, line)
    is_long = steps.step > LONG_MEDIANS * np.median(steps.step)
    if is_long.mean() > RARE:
        is_long[:] = False
    idle_ms = _idle_ms(run, ranks) if line == "device" else None
    parts = _usual_parts(steps, ~is_long, line, idle_ms)
    if pipeline_of(run.cell):
        parts["stages"] = parts.pop("between_steps")
    all_ms = float(steps.step.mean())
    parts["long_steps"] = all_ms - float(steps.step[~is_long].mean())
    # Ranks that do not meet differ in their steps, and the slowest one's is what is explained.
    parts["untimed"] += step_ms - all_ms
    _take_averaging(run, parts)
    late_rank, late_share = _latest(steps)
    _take_contention(run, parts, line, in_turns=late_share <= LATE_SHARE)
    return StepParts(
        ms=parts,
        step_ms=step_ms,
        late_rank=late_rank,
        late_share=late_share,
        long_steps=int(is_long.sum()),
        longest_ms=float(steps.step.max()),
        steps=len(steps.step),
        knows_activity=line == "host" or idle_ms is not None,
    )


def _usual_parts(
    steps: _Steps, usual: npt.NDArray[np.bool_], line: str, idle_ms: Sequence[float] | None
) -> dict[Part, float]:
    """Parts of the mean step among those that are ``usual``; they add up to it.

    ``idle_ms`` is what each rank's GPU idled in its work, None where that is not known.
    """

    def mean(times: Floats) -> float:
        return float(times[usual].mean())

    own = {name: mean(times) for name, times in steps.own.items()}
    transfer, waits_too = mean(steps.transfer), mean(steps.waits_too)
    untimed = mean(steps.step) - sum(own.values()) - transfer - waits_too
    late = {name: mean(times) for name, times in steps.late.items()}
    # The backward of the first rank may be the longer one, for having waited in it.
    late["backward"] = max(0.0, late["backward"])
    late_work = sum(late[name] for name in _WORK)
    dry = min(max(0.0, late_work), _dry_ms(steps, usual, line, idle_ms))
    waiting = late_work - dry + waits_too
    own = {name: ms - late[name] for name, ms in own.items()}
    for name in ("data_wait", "h2d", "other"):
        # Where its host takes no longer than the first one's, the phase itself is on the path.
        more = max(0.0, mean(steps.host_late[name]))
        waited = late[name] if line == "host" else min(late[name], more)
        waiting += waited
        own[name] += late[name] - waited
    work = sum(own[name] for name in _WORK)
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


def _dry_ms(
    steps: _Steps, usual: npt.NDArray[np.bool_], line: str, idle_ms: Sequence[float] | None
) -> float:
    """Ms a step that the last rank's GPU idled in its work because its host was late."""
    if line == "host" or steps.last is None:
        return 0.0
    told = None if idle_ms is None else _idle_when_last(idle_ms, steps.last)
    if told is None:
        late_work = sum(steps.late[name] for name in _WORK)
        told = float(np.where(steps.ran_dry, late_work, 0.0)[usual].mean())
    return max(0.0, told)


def _steps(ranks: Sequence[StepSeries], line: str) -> _Steps:
    times = {name: _stacked(ranks, name, line) for name in (*_OWN, "step")}
    exposed = np.stack([one.column("exposed_comm", line) for one in ranks])
    count = exposed.shape[1]
    nothing = dict.fromkeys(_OWN, np.zeros(count))
    if len(ranks) == 1 or np.isnan(exposed).any(axis=0).all():
        # Nobody is waited for where nothing is reduced: the mean over ranks stands for all.
        means = {name: times[name].mean(axis=0) for name in times}
        sent = np.nan_to_num(exposed).mean(axis=0)
        own = {name: means[name] for name in _OWN}
        never = np.zeros(count, dtype=bool)
        return _Steps(means["step"], own, sent, never * 0.0, nothing, nothing, never, None)
    at, exposed = np.arange(count), np.nan_to_num(exposed)
    # Reductions of earlier buckets that wait for a late rank slow the backward of the others by as
    # much, who then arrive when it does: only together with what came before backward are the
    # times from there to the end of the reduction true.
    lateness = times["data_wait"] + times["h2d"] + times["forward"] - exposed
    first, last = lateness.argmin(axis=0), lateness.argmax(axis=0)
    host = {name: _stacked(ranks, name, "host") for name in _OWN}
    return _Steps(
        step=times["step"][last, at],
        own={name: times[name][last, at] for name in _OWN},
        transfer=exposed.min(axis=0),
        waits_too=exposed[last, at] - exposed.min(axis=0),
        late={name: times[name][last, at] - times[name][first, at] for name in _OWN},
        host_late={name: host[name][last, at] - host[name][first, at] for name in _OWN},
        ran_dry=_ran_dry(times["data_wait"][last, at], host["data_wait"][last, at], line),
        last=last,
    )


def _stacked(ranks: Sequence[StepSeries], name: str, line: str) -> Floats:
    """Shape ``[ranks, steps]``; what was not timed is 0 and so ends up in ``untimed``."""
    return np.nan_to_num(np.stack([one.column(name, line) for one in ranks]))


def _ran_dry(on_device: Floats, on_host: Floats, line: str) -> npt.NDArray[np.bool_]:
    """Steps that a GPU began with nothing queued, by how long it and its host took to fetch.

    The host marks the begin and the end of fetching in the stream. A GPU with work queued passes
    both marks at once; one that has caught up with its host passes them as late as the host does.
    """
    found: npt.NDArray[np.bool_] = on_device > CAUGHT_UP * on_host
    return found if line == "device" else np.zeros_like(found)


def _idle_when_last(idle_ms: Sequence[float], last: npt.NDArray[np.int64]) -> float | None:
    """Ms a step that the GPUs idle because they are the last: the slope of idling over being last.

    None where the ranks are last about equally often, so that their means tell nothing of it.
    """
    shares = np.bincount(last, minlength=len(idle_ms)) / len(last)
    if float(np.ptp(shares)) < _TOLD_APART:
        return None
    return float(np.polyfit(shares, idle_ms, 1)[0])


def _idle_ms(run: Run, ranks: Sequence[StepSeries]) -> list[float] | None:
    """Ms a step that each rank's GPU had no kernel while it should have computed.

    Time in which it waits for its loader, a copy or a callback is not in it. None unless the
    activity of every rank's GPU is known.
    """
    activity = _activity(run.usage)
    idle_phases = ("data_wait", "h2d") if pipeline_of(run.cell) else ("data_wait", "h2d", "other")
    found = []
    for one in ranks:
        share = activity.get(one.rank)
        if share is None:
            return None
        step_ms = float(one.column("step", "device").mean())
        known = sum(float(np.nan_to_num(one.column(p, "device")).mean()) for p in idle_phases)
        found.append(max(0.0, step_ms * (1 - share) - known))
    return found


def _activity(usage: Usage | None) -> dict[int, float]:
    """Share of the time in which each rank's GPU had a kernel, 0 to 1."""
    if usage is None or usage.source != "nvml":
        return {}
    return {
        one.device.rank: one.engine_activity_percent / 100
        for one in usage.devices
        if one.engine_activity_percent is not None and one.device.rank is not None
    }


def _latest(steps: _Steps) -> tuple[int | None, float]:
    """The rank that the others wait for longest, and its share of all that they wait."""
    if steps.last is None:
        return None, 0.0
    waited = np.bincount(steps.last, weights=np.maximum(0.0, sum(steps.late.values())))
    rank = int(waited.argmax())
    return rank, float(waited[rank] / max(1e-9, waited.sum()))


def _take_averaging(run: Run, parts: dict[Part, float]) -> None:
    """Parameters that are averaged after a step are a transfer, whose time lies in ``other``."""
    ranks = run.cell.result.ranks if run.cell.result else ()
    each = [
        r.communication.ms_per_step
        for r in ranks
        if r.communication is not None
        and r.communication.what == "parameters"
        and r.communication.ms_per_step is not None
    ]
    if each and "between_steps" in parts:
        ms = min(sum(each) / len(each), parts["between_steps"])
        parts["transfer"] += ms
        parts["between_steps"] -= ms


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
    own: tuple[Part, ...] = ("host_late", "loader", "between_steps")
    if line == "host":
        own = ("device_work", "optimizer", "loader", "copy", "between_steps", "stages")
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
    ranks = run.cell.result.ranks if run.cell.result else ()
    found = {}
    for rank in ranks:
        if rank.run_queue_ms_per_step is not None:
            own = (rank.other_threads_cpu_ms_per_step or 0.0) / max(1, len(rank.device.cores))
            found[rank.rank] = max(0.0, rank.run_queue_ms_per_step - own)
    return found
