"""Stalls: times in which every rank was inside a long step, and when each step ran."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from scalewise.records import StepSeries

LONG_STEP_MEDIANS: Final = 2.0

STALL_MS: Final = 100.0
"""Time beyond the median step. In the 31 runs on several H200s that a second context stalled, the
stall took 133 to 447 ms; steps of all ranks that were long for another reason took at most 66 ms,
on one GPU and on CPUs at most 17. Three medians would miss the stalls of slow steps: 2.6 medians
in a pipeline of 82 ms a step."""


@dataclass(frozen=True)
class CommonStall:
    """A time in which every rank was inside a long step."""

    begin_s: float
    """Since the first step began."""
    length_ms: float
    median_step_ms: float
    in_warmup: bool


def common_stalls(series: Sequence[StepSeries], prepare_steps: int = 0) -> tuple[CommonStall, ...]:
    """Times in which every rank was inside a long step, warm-up included, the first step not.

    Nor are the first ``prepare_steps``, in which a step is compiled or captured on every rank.
    Ranks may be a step apart in number, so steps are compared by when they ran.
    """
    medians = [np.nanmedian(_durations_ms(one)[1:]) for one in series if len(one) > 1]
    if len(medians) < len(series) or np.isnan(medians).any():
        return ()
    median = float(np.median(medians))
    common: list[tuple[float, float, bool]] | None = None
    for one in series:
        long = _long_steps(one, median, max(1, prepare_steps))
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


def _long_steps(
    series: StepSeries, median_ms: float, left_out: int
) -> list[tuple[float, float, bool]]:
    """Begin, end and whether it is warm-up of each long step but the first ones."""
    steps = _durations_ms(series)
    is_long = steps > LONG_STEP_MEDIANS * median_ms
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
