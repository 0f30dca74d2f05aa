"""Steps along their critical path: what each of their phases took on the rank that was last.

A step is seen from the rank that is last at the reduction of gradients. Steps are gone through in
pieces, so that memory does not grow with all columns of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from scalewise.analysis.steps import timeline
from scalewise.records import StepSeries

LONG_MEDIANS: Final = 3.0
"""A step beyond so many medians is long: noise of single steps stays below it."""

CAUGHT_UP: Final = 0.25
"""Share of the host's fetch time that the GPU's marks are apart from which it had caught up: with
work queued they are 0.01 ms apart, else as far as on the host."""

RARE: Final = 0.2
"""Share of long steps up to which they are exceptions; beyond, the steps are of two kinds."""

WORK: Final = ("forward", "backward", "optimizer")
_OWN: Final = ("data_wait", "h2d", *WORK, "other")
"""Phases of a rank's own; ``exposed_comm`` is shared."""

Floats = npt.NDArray[np.float64]


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

    def by_name(self) -> Iterator[tuple[str, Floats]]:
        """All times, those of phases as ``own.forward``."""
        yield from (("step", self.step), ("transfer", self.transfer), ("waits_too", self.waits_too))
        for group in ("own", "late", "host_late"):
            yield from ((f"{group}.{name}", ms) for name, ms in getattr(self, group).items())
        yield "dry", np.where(self.ran_dry, sum(self.late[name] for name in WORK), 0.0)


@dataclass(frozen=True)
class StepMeans:
    """Means of a run in ms a step, over its usual steps unless it says otherwise."""

    timeline: str
    step: float
    own: Mapping[str, float]
    """Of the last rank, by phase."""
    transfer: float
    waits_too: float
    late: Mapping[str, float]
    """By phase, what the last rank takes beyond the one that waits longest."""
    host_late: Mapping[str, float]
    """The same on the hosts' clocks."""
    dry: float
    """Late work of ranks whose GPU began with nothing queued."""
    all_steps: float
    """Mean of all steps, long ones included."""
    last_share: tuple[float, ...] | None
    """Share of all steps in which each rank is last; None where ranks do not meet."""
    waited: tuple[float, ...]
    """What is waited for each rank in all steps together."""
    device_step: tuple[float, ...]
    """Mean of all steps on each rank's device, NaN-free where all were timed there."""
    device_phases: tuple[Mapping[str, float], ...]
    """The same by phase; untimed ones count as 0."""
    steps: int
    long_steps: int
    """Steps beyond three medians."""
    longest: float


_PIECE: Final = 2**18
"""Steps that are gone through at a time."""
_WAITS: Final = ("data_wait", "h2d", "other")


def path_of(ranks: Sequence[StepSeries]) -> StepMeans:
    """Means along the critical path of the common steps of all ranks."""
    line, count = timeline(ranks), len(ranks[0])
    untimed = np.any([np.isnan(one.column("exposed_comm", line)) for one in ranks], axis=0)
    meet = len(ranks) > 1 and not untimed.all()
    pieces = [
        [replace(one, rows=one.rows[first : first + _PIECE]) for one in ranks]
        for first in range(0, count, _PIECE)
    ]
    seen = [_steps(piece, line, meet=meet) for piece in pieces] if len(pieces) == 1 else None

    def along() -> Iterator[_Steps]:
        return iter(seen) if seen else (_steps(piece, line, meet=meet) for piece in pieces)

    step = np.concatenate([one.step for one in along()])
    is_long = step > LONG_MEDIANS * np.median(step)
    if is_long.mean() > RARE:
        is_long[:] = False
    usual, first = ~is_long, 0
    sums: dict[str, float] = {}
    last, waited = np.zeros(len(ranks)), np.zeros(len(ranks))
    for one in along():
        kept = usual[first : first + len(one.step)]
        first += len(kept)
        for name, times in one.by_name():
            sums[name] = sums.get(name, 0.0) + float((times if kept.all() else times[kept]).sum())
        if one.last is not None:
            last += np.bincount(one.last, minlength=len(ranks))
            late = np.maximum(0.0, sum(one.late.values()))
            waited += np.bincount(one.last, weights=late, minlength=len(ranks))
    means = {name: total / int(usual.sum()) for name, total in sums.items()}

    def under(group: str) -> dict[str, float]:
        return {name: means[f"{group}.{name}"] for name in _OWN}

    return StepMeans(
        timeline=line,
        step=means["step"],
        own=under("own"),
        transfer=means["transfer"],
        waits_too=means["waits_too"],
        late=under("late"),
        host_late=under("host_late"),
        dry=means["dry"],
        all_steps=float(step.mean()),
        last_share=tuple((last / count).tolist()) if meet else None,
        waited=tuple(waited.tolist()),
        device_step=_device_means(ranks, "step", line),
        device_phases=tuple(
            dict(zip(_WAITS, each, strict=True))
            for each in zip(*(_device_means(ranks, name, line) for name in _WAITS), strict=True)
        ),
        steps=count,
        long_steps=int(is_long.sum()),
        longest=float(step.max()),
    )


def _device_means(ranks: Sequence[StepSeries], name: str, line: str) -> tuple[float, ...]:
    if line != "device":
        return ()
    return tuple(float(np.nan_to_num(one.column(name, line)).mean()) for one in ranks)


def _steps(ranks: Sequence[StepSeries], line: str, *, meet: bool) -> _Steps:
    times = {name: _stacked(ranks, name, line) for name in (*_OWN, "step")}
    exposed = _stacked(ranks, "exposed_comm", line)
    count = exposed.shape[1]
    nothing = dict.fromkeys(_OWN, np.zeros(count))
    if not meet:
        # Nobody is waited for where nothing is reduced: the mean over ranks stands for all.
        means = {name: times[name].mean(axis=0) for name in times}
        sent = exposed.mean(axis=0)
        own = {name: means[name] for name in _OWN}
        never = np.zeros(count, dtype=bool)
        return _Steps(means["step"], own, sent, never * 0.0, nothing, nothing, never, None)
    at = np.arange(count)
    # Reductions of earlier buckets that wait for a late rank slow the backward of the others by as
    # much, who then arrive when it does: only together with what came before backward are the
    # times from there to the end of the reduction true.
    lateness = times["data_wait"] + times["h2d"] + times["forward"] - exposed
    first, last = lateness.argmin(axis=0), lateness.argmax(axis=0)
    host = {name: _stacked(ranks, name, "host") for name in _OWN}
    # The host marks the begin and the end of fetching in the stream. A GPU with work queued passes
    # both marks at once; one that has caught up with its host passes them as late as the host does.
    dry = times["data_wait"] > CAUGHT_UP * host["data_wait"]
    return _Steps(
        step=times["step"][last, at],
        own={name: times[name][last, at] for name in _OWN},
        transfer=exposed.min(axis=0),
        waits_too=exposed[last, at] - exposed.min(axis=0),
        late={name: times[name][last, at] - times[name][first, at] for name in _OWN},
        host_late={name: host[name][last, at] - host[name][first, at] for name in _OWN},
        ran_dry=dry[last, at] & (line == "device"),
        last=last,
    )


def _stacked(ranks: Sequence[StepSeries], name: str, line: str) -> Floats:
    """Shape ``[ranks, steps]``; what was not timed is 0 and so ends up in ``untimed``."""
    times = np.stack([one.column(name, line) for one in ranks])
    np.copyto(times, 0.0, where=np.isnan(times))
    return times
