"""All that a report takes from the step rows of a cell, measured in one go.

Rows grow with a run and these figures do not: whatever judges or draws a run has no rows.

Timed steps begin after ``warmup_steps``, once the step time is steady: by MSER-5 (White 1997), with
the median of fifteen steps for each batch, since warm-up is a level and a stall is none. No more is
left out than until the steps first come to their later level, and a long step never
(docs/method.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from scalewise.analysis.balance import ONE_RANK, LoadBalance, measure_balance
from scalewise.analysis.devices import Span
from scalewise.analysis.model import CellRecords, WarmUp, WarmUpRule
from scalewise.analysis.step_path import (
    CommonStall,
    StepMeans,
    common_stalls,
    path_of,
    step_edges_s,
)
from scalewise.analysis.steps import (
    LONG_MEDIANS,
    Anatomy,
    LongSteps,
    NotMeasuredError,
    Throughput,
    aligned_steps,
    divided_steps,
    epoch_times_s,
    find_long_steps,
    measure_anatomy,
    measure_throughput,
    take,
    timed_steps,
    timeline,
    without,
)
from scalewise.analysis.validity import contradiction
from scalewise.records import (
    UNCOUNTED,
    CellFolder,
    CellResult,
    StepSeries,
    data_shards_of,
    read_steps,
)

Floats = npt.NDArray[np.float64]
CATCH_UP_STEPS: Final = 32
"""In which a host makes up for a late step; chosen on other hosts' steps (docs/rehearsal.md)."""
MOST_POINTS: Final = 500
"""Of a curve."""


@dataclass(frozen=True)
class RankSteps:
    """When the steps of one rank ran, and how long they took."""

    rank: int
    steps: int
    edges_s: tuple[float, float, float] | None
    """Unix time at which the first step began, at which it ended, and at which the last one did;
    None without a step."""
    timed_s: Span | None
    """From the first to the last timed step, on the better timeline; None where none is timed."""
    began_s: tuple[float, ...]
    """When steps began, since the first one did: of the shortest, the middle and the longest of
    each of 166 equal times, or all of at most 500."""
    step_ms: tuple[float, ...]
    """How long those took."""


@dataclass(frozen=True)
class StepFigures:
    """The step rows of one cell; None and absent figures have their reason in ``missing``."""

    ranks: tuple[RankSteps, ...] = ()
    """In their order; those whose file cannot be used are absent."""
    faults: tuple[str, ...] = ()
    """What is wrong with step files, a line each."""
    warm_up: WarmUp | None = None
    all_s: Span | None = None
    """From the first start of a step to the last end, on the hosts' clocks."""
    timed_s: Span | None = None
    """The same of timed steps."""
    epochs_s: tuple[tuple[int, float], ...] = ()
    """Whole epochs, and the seconds of training in each."""
    throughput: Throughput | None = None
    lateness: float = 1.0
    """Of a rehearsal: a step of the slowest of its ranks, over one of the rank that was there."""
    host_lateness: float = 1.0
    """The same of hosts, which make up in other steps for what they lost in one."""
    anatomy: Anatomy | None = None
    balance: LoadBalance | None = None
    long: LongSteps | None = None
    path: StepMeans | None = None
    contradiction: str | None = None
    stalls: tuple[CommonStall, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)


def epochs_after(cell: CellRecords, warmup: int) -> list[tuple[int, float]]:
    """Whole epochs but the first ``warmup`` ones, and the seconds of training in each."""
    return [each for each in figures_of(cell).epochs_s if each[0] >= warmup]


def measure_steps(
    series: Sequence[StepSeries],
    result: CellResult | None,
    warm_up: WarmUp | None = None,
    faults: Sequence[str] = (),
) -> StepFigures:
    """Measure the steps of a cell; of one without a ``result`` only when they ran."""
    missing: dict[str, str] = {}
    known = [one for one in series if len(one)]
    when = StepFigures(
        ranks=tuple(map(_rank_steps, series)),
        faults=tuple(faults),
        warm_up=warm_up,
        all_s=span_of(known),
        timed_s=span_of([one.timed() for one in known]),
        epochs_s=epoch_times_s(series),
        missing=missing,
    )
    if result is None:
        return when
    prepared = [rank.execution.prepare_steps for rank in result.ranks if rank.execution]
    when = replace(
        when,
        contradiction=contradiction(series),
        stalls=common_stalls(series, max(prepared, default=0)) if series else (),
    )
    try:
        timed = timed_steps(series, result.world_size)
    except NotMeasuredError as reason:
        missing |= dict.fromkeys(("throughput", "anatomy", "balance"), str(reason))
        if result.world_size == 1:
            missing["balance"] = ONE_RANK
        return when
    long = find_long_steps(timed)
    common = without(timed, long)
    divided = divided_steps(common)
    throughput = take(
        missing, "throughput", measure_throughput, common, data_shards_of(result.ranks)
    )
    uncounted = [one.missing[UNCOUNTED] for one in result.ranks if UNCOUNTED in one.missing]
    if throughput is not None and (uncounted or throughput.samples is None):
        throughput = replace(throughput, samples=None, global_samples_per_s=None)
        missing["throughput"] = (*uncounted, "no tensor was found in any batch")[0]
    return replace(
        when,
        throughput=throughput,
        lateness=_lateness(result, common, 1),
        host_lateness=_lateness(result, common, CATCH_UP_STEPS),
        anatomy=take(missing, "anatomy", measure_anatomy, divided),
        balance=take(missing, "balance", measure_balance, divided),
        long=long,
        path=path_of(common, divided),
    )


def _lateness(result: CellResult, ranks: Sequence[StepSeries], in_a_row: int) -> float:
    """As if each rank drew its steps, so many in a row, from those of the one that was there.

    The first step follows the last. Of n draws the i-th shortest is the longest of N in
    ``(i^N - (i-1)^N) / n^N`` of all ways.
    """
    if result.rehearsed is None or not (own_ms := ranks[0].column("step", timeline(ranks))).any():
        return 1.0
    together = min(in_a_row, len(own_ms))
    around_ms = np.append(own_ms, own_ms[: together - 1])
    draws_ms = np.sort(np.convolve(around_ms, np.full(together, 1 / together), "valid"))
    weights = np.diff(np.linspace(0, 1, len(draws_ms) + 1) ** result.rehearsed.ranks)
    return float(weights @ draws_ms / own_ms.mean())


def figures_of(cell: CellRecords) -> StepFigures:
    """The figures of a cell's steps, as they were measured when it was read."""
    if isinstance(cell.steps, CellSteps):
        return cell.steps.figures
    return measure_steps(cell.steps, cell.result, cell.warm_up)


def span_of(series: Sequence[StepSeries]) -> Span | None:
    """From the first start to the last end among the steps; None without any."""
    starts, ends = [], []
    for one in series:
        if len(one):
            begin_ns, tail_ms = one.rows["start_ns"], float(one.rows[-1]["host_step_ms"])
            starts.append((int(begin_ns[0]) + one.epoch_offset_ns) / 1e9)
            end = (int(begin_ns[-1]) + one.epoch_offset_ns) / 1e9
            ends.append(end + (0.0 if np.isnan(tail_ms) else tail_ms / 1e3))
    return (min(starts), max(ends)) if starts else None


def _rank_steps(series: StepSeries) -> RankSteps:
    if not len(series):
        return RankSteps(series.rank, 0, None, None, (), ())
    edges, timed, step_ms = step_edges_s(series), series.is_timed, series.column("step")
    known = ~np.isnan(step_ms)
    began_s, step_ms = extremes((edges[:-1] - edges[0])[known], step_ms[known])
    first, last = int(timed.argmax()), len(timed) - 1 - int(timed[::-1].argmax())
    return RankSteps(
        series.rank,
        len(series),
        (float(edges[0]), float(edges[1]), float(edges[-1])),
        (float(edges[first]), float(edges[last + 1])) if timed.any() else None,
        tuple(began_s.tolist()),
        tuple(step_ms.tolist()),
    )


def extremes(x: Floats, y: Floats, most: int = MOST_POINTS) -> tuple[Floats, Floats]:
    """The same points if they are few, else the lowest, middle and highest of equal bins of x.

    So a median of what is kept is one of all. ``x`` rises, both have shape ``[points]``.
    """
    if len(x) <= most:
        return x, y
    bounds = np.linspace(x[0], x[-1], most // 3 + 1)
    kept = sorted(
        place
        for first, last in pairwise([0, *np.searchsorted(x, bounds[1:-1]).tolist(), len(x)])
        if last > first
        for place in {first + at for at in _low_middle_high(y[first:last])}
    )
    return x[kept], y[kept]


def _low_middle_high(y: Floats) -> tuple[int, int, int]:
    middle = (len(y) - 1) // 2
    return int(y.argmin()), int(y.argpartition(middle)[middle]), int(y.argmax())


class CellSteps(Sequence[StepSeries]):
    """The steps of a cell, one series a rank: read from disk each time one is asked for."""

    def __init__(self, folder: CellFolder, figures: StepFigures) -> None:
        self._folder, self.figures = folder, figures

    def __len__(self) -> int:
        return len(self.figures.ranks)

    def __getitem__(self, key: Any) -> Any:
        """The series at ``key``. Raises :class:`RecordError` where the file was damaged since."""
        rank, warm_up = self.figures.ranks[key].rank, self.figures.warm_up
        series = read_steps(self._folder.steps_path(rank), rank)
        if warm_up is None or warm_up.timed_from == warm_up.least:
            return series
        return replace(series, timed_from=warm_up.timed_from)


LEAST_STEPS: Final = 50
"""Steps after ``warmup_steps`` below which there is nothing to search in."""
BATCH: Final = 5
_LAST_BATCHES: Final = 5
"""Batches that are never the first: of so few the standard error is small by chance."""
_SAME_LEVEL: Final = 0.03
"""Share by which levels differ at least: less is not worth its steps."""
_MIDDLE: Final = (10.0, 90.0)
"""Percentiles of the later levels between which a level is one of them."""
_MOST_SHARE: Final = 0.5  # Of a run's steps, that may be left out as its warm-up at most.


def leave_out_warmup(
    series: Sequence[StepSeries], world_size: int
) -> tuple[tuple[StepSeries, ...], WarmUp | None]:
    """All steps before the first timed one taken as warm-up; as they are where none is timed."""
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

    ``step_ms`` is of the slowest rank, shape ``[steps]``; the ``least`` first are never timed.
    """
    if len(step_ms) - least < LEAST_STEPS:
        return "count", least, least
    offset, first = least % BATCH, least // BATCH
    levels = _levels(step_ms[offset:])
    later = levels[first + int(squared_errors(levels[first:])[:-_LAST_BATCHES].argmin()) :]
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
