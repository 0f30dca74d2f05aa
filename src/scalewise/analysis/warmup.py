"""Where the timed steps of a run begin: after ``warmup_steps``, once the step time is steady.

MSER-5 (White 1997; White, Cobb & Spratt 2000) leaves out as many batches of five steps as make the
standard error of the mean of the others smallest. It takes any disturbance in the first half for
warm-up. Warm-up is a level, and a stall is none: so each batch stands for the median of the fifteen
steps around it, no more is left out than until the steps first come to their later level, and a
long step is never left out. docs/method.md holds what that finds and misses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from scalewise.analysis.model import WarmUp, WarmUpRule
from scalewise.analysis.steps import LONG_MEDIANS, NotMeasuredError, aligned_steps, timeline
from scalewise.records import StepSeries

LEAST_STEPS: Final = 50
"""Steps after ``warmup_steps`` below which there is nothing to search in."""

BATCH: Final = 5
_LAST_BATCHES: Final = 5
"""Batches that are never the first: of so few the standard error is small by chance."""
_SAME_LEVEL: Final = 0.03
"""Share by which levels differ at least: less is not worth its steps."""
_MIDDLE: Final = (10.0, 90.0)
"""Percentiles of the later levels between which a level is one of them."""
_MOST_SHARE: Final = 0.5

Floats = npt.NDArray[np.float64]


def leave_out_warmup(
    series: Sequence[StepSeries], world_size: int
) -> tuple[tuple[StepSeries, ...], WarmUp | None]:
    """The series of a run's ranks, with all steps before the first timed one taken as warm-up.

    As they are, and None, where no step can be timed.
    """
    line = timeline(series)
    try:
        ranks = aligned_steps(series, world_size, line)
    except NotMeasuredError:
        return tuple(series), None
    steps = ranks[0].rows["step"]
    is_timed = np.all([one.is_timed for one in ranks], axis=0)
    if not is_timed.any():
        return tuple(series), None
    least = int(is_timed.argmax())
    rule, first, steady = find_first(
        np.max([one.column("step", line) for one in ranks], axis=0), least
    )
    least_step, timed_from, steady_from = (int(steps[at]) for at in (least, first, steady))
    found = WarmUp(rule, least_step, timed_from, steady_from, int(steps[-1]) + 1)
    if first == least:
        return tuple(series), found
    return tuple(replace(one, timed_from=timed_from) for one in series), found


def find_first(step_ms: Floats, least: int) -> tuple[WarmUpRule, int, int]:
    """The rule that held, the index of the first timed step, and that of the first steady one.

    Args:
        step_ms: of the slowest rank in every step from the first on, shape ``[steps]``.
        least: first steps that are never timed.
    """
    if len(step_ms) - least < LEAST_STEPS:
        return "count", least, least
    offset, first = least % BATCH, least // BATCH
    levels = _levels(step_ms[offset:])
    errors = squared_errors(levels[first:])[:-_LAST_BATCHES]
    later = levels[first + int(errors.argmin()) :]
    middle, (low, high) = float(np.median(later)), np.percentile(later, _MIDDLE)
    low, high = min(low, (1 - _SAME_LEVEL) * middle), max(high, (1 + _SAME_LEVEL) * middle)
    reached = max(first, int(((levels >= low) & (levels <= high)).argmax()))
    most = first + int(_MOST_SHARE * (len(levels) - first))
    timed = step_ms[least : offset + BATCH * len(levels)]
    long = np.flatnonzero(timed > LONG_MEDIANS * np.repeat(levels[first:], BATCH))
    if len(long):
        most = min(most, first + int(long[0]) // BATCH)
    steady = offset + BATCH * reached
    return ("MSER-5", steady, steady) if reached <= most else ("not steady", least, steady)


def _levels(step_ms: Floats) -> Floats:
    """For each whole batch the median of its steps and of the batches beside it."""
    around = np.lib.stride_tricks.sliding_window_view(
        np.pad(step_ms, BATCH, mode="symmetric"), 3 * BATCH
    )
    found: Floats = np.median(around[::BATCH][: len(step_ms) // BATCH], axis=1)
    return found


def squared_errors(levels: Floats) -> Floats:
    """The squared standard error of the mean of all levels from each one on, times a constant."""
    # Deviations from the middle: their squares lose no digits in the difference below.
    backwards = (levels - np.median(levels))[::-1]
    count = np.arange(1, len(levels) + 1)
    squares = np.cumsum(backwards**2) - np.cumsum(backwards) ** 2 / count
    found: Floats = (np.maximum(squares, 0.0) / count**2)[::-1]
    return found
