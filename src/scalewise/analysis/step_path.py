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

from scalewise.analysis.steps import LONG_MEDIANS, STALL_MS, timeline
from scalewise.records import StepSeries

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
class StepMeans:
    """Means of a run in ms a step, over its usual steps unless it says otherwise."""

    timeline: str
    step: float
    own: Mapping[str, float]
    """Phases of the last rank, by the names of :data:`_OWN`."""
    transfer: float
    """From the last gradient to the end of the reduction, on the rank where that is shortest."""
    waits_too: float
    """What the last rank waits in the reduction all the same, for another one's backward."""
    late: Mapping[str, float]
    """By phase, what the last rank takes beyond the one that waits longest."""
    host_late: Mapping[str, float]
    """The same on the hosts' clocks."""
    dry: float
    """Late work of ranks whose GPU began with nothing queued: their hosts set the pace."""
    all_steps: float
    """Mean of all steps, long ones included."""
    last_share: tuple[float, ...] | None
    """Share of all steps in which each rank is last; None where ranks do not meet."""
    waited: tuple[float, ...]
    """What is waited for each rank in all steps together."""
    device_step: tuple[float, ...]
    """Mean of all steps on each rank's device, NaN-free where all were timed there."""
    device_phases: Mapping[str, tuple[float, ...]]
    """The same of phases in which a GPU waits; untimed ones count as 0."""
    steps: int
    long_steps: int
    """Steps beyond three medians."""
    longest: float


_PIECE: Final = 2**18
"""Steps that are gone through at a time."""
_WAITS: Final = ("data_wait", "h2d", "other")


def path_of(all_ranks: Sequence[StepSeries], ranks: Sequence[StepSeries]) -> StepMeans:
    """Means along the critical path of the common steps of all ranks.

    Phases are those of ``ranks``, their divided steps, scaled to the mean of all: the marks of a
    divided step make it longer.
    """
    line = timeline(all_ranks)
    untimed = np.any([np.isnan(one.column("exposed_comm", line)) for one in ranks], axis=0)
    meet = len(ranks) > 1 and not untimed.all()
    count = len(ranks[0])
    pieces = [
        [replace(one, rows=one.rows[first : first + _PIECE]) for one in ranks]
        for first in range(0, count, _PIECE)
    ]
    seen = [_steps(piece, line, meet=meet) for piece in pieces] if len(pieces) == 1 else None

    def along() -> Iterator[tuple[dict[str, Floats], npt.NDArray[np.int64] | None]]:
        return iter(seen) if seen else (_steps(piece, line, meet=meet) for piece in pieces)

    step = stands = np.concatenate([ms["step"] for ms, _ in along()])
    is_whole = ranks[0].rows["step"] != all_ranks[0].rows["step"]
    if is_whole.any():
        whole = np.stack([one.column("step", line) for one in all_ranks]).mean(axis=0)
        step = np.where(is_whole, whole, stands)
    longest_usual = LONG_MEDIANS * np.median(step)
    is_long, usual, first = step > longest_usual, stands <= longest_usual, 0
    if is_long.mean() > RARE or not usual.any():
        is_long[:], usual[:] = False, True
    sums: dict[str, float] = {}
    last, waited = np.zeros(len(ranks)), np.zeros(len(ranks))
    for ms, at in along():
        kept = usual[first : first + len(ms["step"])]
        first += len(kept)
        for name, times in ms.items():
            sums[name] = sums.get(name, 0.0) + float((times if kept.all() else times[kept]).sum())
        if at is not None:
            last += np.bincount(at, minlength=len(ranks))
            late = np.maximum(0.0, sum(ms[f"late.{name}"] for name in _OWN))
            waited += np.bincount(at, weights=late, minlength=len(ranks))
    scale = float(step[~is_long].mean() / stands[usual].mean()) if is_whole.any() else 1.0
    means = {name: scale * total / int(usual.sum()) for name, total in sums.items()}

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
        device_step=_device_means(all_ranks, "step", line),
        device_phases={name: _device_means(ranks, name, line, scale) for name in _WAITS},
        steps=count,
        long_steps=int(is_long.sum()),
        longest=float(step.max()),
    )


def _device_means(
    ranks: Sequence[StepSeries], name: str, line: str, scale: float = 1.0
) -> tuple[float, ...]:
    if line != "device":
        return ()
    return tuple(scale * float(np.nan_to_num(one.column(name, line)).mean()) for one in ranks)


def _steps(
    ranks: Sequence[StepSeries], line: str, *, meet: bool
) -> tuple[dict[str, Floats], npt.NDArray[np.int64] | None]:
    """Times of :class:`StepMeans` in ms, ``[steps]``, those of phases as ``own.forward``.

    Then the rank that is last in each step, from which it is seen; None where ranks do not meet.
    """
    times = {name: _stacked(ranks, name, line) for name in (*_OWN, "step")}
    exposed = _stacked(ranks, "exposed_comm", line)
    count = exposed.shape[1]
    if not meet:
        # Nobody is waited for where nothing is reduced: the mean over ranks stands for all.
        own = {f"own.{name}": times[name].mean(axis=0) for name in _OWN}
        never = (
            "waits_too",
            "dry",
            *(f"{g}.{name}" for g in ("late", "host_late") for name in _OWN),
        )
        met = {"step": times["step"].mean(axis=0), "transfer": exposed.mean(axis=0)}
        return {**met, **own, **dict.fromkeys(never, np.zeros(count))}, None
    at = np.arange(count)
    # Reductions of earlier buckets that wait for a late rank slow the backward of the others by as
    # much, who then arrive when it does: only together with what came before backward are the
    # times from there to the end of the reduction true.
    lateness = times["data_wait"] + times["h2d"] + times["forward"] - exposed
    first, last = lateness.argmin(axis=0), lateness.argmax(axis=0)
    host = {name: _stacked(ranks, name, "host") for name in _OWN}
    # The host marks the begin and the end of fetching in the stream. A GPU with work queued passes
    # both marks at once; one that has caught up with its host passes them as late as the host does.
    dry = (times["data_wait"] > CAUGHT_UP * host["data_wait"])[last, at] & (line == "device")
    shortest = exposed.min(axis=0)
    found = {
        "step": times["step"][last, at], "transfer": shortest,
        "waits_too": exposed[last, at] - shortest,
    }  # fmt: skip
    for name in _OWN:
        found[f"own.{name}"] = times[name][last, at]
        found[f"late.{name}"] = times[name][last, at] - times[name][first, at]
        found[f"host_late.{name}"] = host[name][last, at] - host[name][first, at]
    found["dry"] = np.where(dry, sum(found[f"late.{name}"] for name in WORK), 0.0)
    return found, last


def _stacked(ranks: Sequence[StepSeries], name: str, line: str) -> Floats:
    """Shape ``[ranks, steps]``; what was not timed is 0 and so ends up in ``untimed``."""
    times = np.stack([one.column(name, line) for one in ranks])
    np.copyto(times, 0.0, where=np.isnan(times))
    return times


@dataclass(frozen=True)
class CommonStall:
    """A time in which every rank was inside a long step."""

    begin_s: float
    """Since the first step began."""
    length_ms: float
    median_step_ms: float
    in_warmup: bool


def common_stalls(series: Sequence[StepSeries], prepare_steps: int = 0) -> tuple[CommonStall, ...]:
    """Times in which every rank was inside a long step, but for the first ``prepare_steps`` or one.

    Ranks may be a step apart in number, so steps are compared by when they ran.
    """
    medians = [np.nanmedian(_durations_ms(one)[1:]) for one in series if len(one) > 1]
    if len(medians) < len(series) or np.isnan(medians).any():
        return ()
    median = float(np.median(medians))
    common: list[tuple[float, float, bool]] | None = None
    for one in series:
        long = _long_times(one, median, max(1, prepare_steps))
        common = long if common is None else list(_overlaps(common, long))
    if not common:
        return ()
    start = min(float(step_edges_s(one)[0]) for one in series)
    found = (
        CommonStall(begin - start, 1e3 * (end - begin), median, warmup)
        for begin, end, warmup in common
    )
    return tuple(stall for stall in found if stall.length_ms - median >= STALL_MS)


def step_edges_s(series: StepSeries) -> npt.NDArray[np.float64]:
    """Unix time at which each step began, and the last one's end, on the better timeline.

    The device has no clock of its own: its steps follow one another from where the host began,
    and gaps between steps of the host (validation, checkpoints) are gaps of the device too.
    """
    starts = (series.rows["start_ns"] + series.epoch_offset_ns) / 1e9
    host_s = np.nan_to_num(series.column("step", "host")) / 1e3
    gaps = np.append(np.maximum(np.diff(starts) - host_s[:-1], 0.0), 0.0)
    steps = np.nan_to_num(_durations_ms(series)) / 1e3
    edges: npt.NDArray[np.float64] = starts[0] + np.append(0.0, np.cumsum(steps + gaps))
    return edges


def _durations_ms(series: StepSeries) -> npt.NDArray[np.float64]:
    """How long each step took on the better timeline, on the host's where that one has none."""
    best, host = series.column("step"), series.column("step", "host")
    return np.where(np.isnan(best), host, best)


def _long_times(
    series: StepSeries, median_ms: float, left_out: int
) -> list[tuple[float, float, bool]]:
    """Begin, end and whether it is warm-up of each long step but the first ones."""
    steps = _durations_ms(series)
    is_long = steps > LONG_MEDIANS * median_ms
    is_long[:left_out] = False
    if not is_long.any():
        return []
    edges, is_timed = step_edges_s(series), series.is_timed
    return [
        (float(edges[i]), float(edges[i] + steps[i] / 1e3), not is_timed[i])
        for i in np.flatnonzero(is_long)
    ]


def _overlaps(
    a: Sequence[tuple[float, float, bool]], b: Sequence[tuple[float, float, bool]]
) -> Iterator[tuple[float, float, bool]]:
    """Times in both; each list is in order and its times lie apart."""
    i = j = 0
    while i < len(a) and j < len(b):
        begin, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if begin < end:
            yield begin, end, a[i][2] and b[j][2]
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
