"""Cells that are no timed runs: examinations by the doctor, and windows under a profiler.

Their figures stand beside those of timed cells and are never mixed with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from scalewise.analysis.identity import differences
from scalewise.analysis.kinds import is_profiled, is_timed
from scalewise.analysis.runs import Configuration
from scalewise.records import StepSeries
from scalewise.records.profile import WindowProfile


def timed_only(configs: Iterable[Configuration]) -> tuple[Configuration, ...]:
    """Those whose cells are timed."""
    return tuple(c for c in configs if is_timed(c.cells[0].config))


@dataclass(frozen=True)
class Window:
    """A profiler's window over a configuration, ms a step."""

    cell: str
    """Name of the cell that was profiled."""
    timeline: str
    """``device``: kernels by name; ``host``: collectives and operators of a CPU host."""
    steps: int
    ranks: int
    span_ms: float
    """Mean over ranks. A profiled step is longer than a timed one."""
    computation_ms: float
    """Mean over ranks, of merged intervals."""
    total_ms: float | None
    """Communication, mean over ranks, waiting inside the collectives included; this and the two
    below are None where the profiler made ranks wait (:meth:`without_waiting`)."""
    overlapped_ms: float | None
    """The part of ``total_ms`` beside which something was computed."""
    least_total_ms: float | None
    """Of the rank that waits least."""
    on_ms: float | None
    """Median step with reduction, the profiler stopped; None where none was left out."""
    off_ms: float | None
    """Median step without (``no_sync``), in blocks between those."""
    transfer_ms: float | None = None
    """Communication without the waiting: each collective as long as it ran on the rank that came to
    it last. None where ranks ran different ones, or the record is older than their durations."""
    slower_ms: float | None = None
    """How much later the last gradient of a step is there with reduction than without, median
    less median of the mean over ranks: computation beside collectives, and what DDP does to each
    gradient. None where phases were not marked."""

    @property
    def not_overlapped_ms(self) -> float | None:
        if self.total_ms is None or self.overlapped_ms is None:
            return None
        return self.total_ms - self.overlapped_ms

    def without_waiting(self) -> Window:
        """The same without the figures that waiting inside collectives is part of."""
        return replace(self, total_ms=None, overlapped_ms=None, least_total_ms=None)

    @property
    def cost_ms(self) -> float | None:
        """All that reducing costs a step: what is exposed, and the slower computation beside it."""
        return None if self.on_ms is None or self.off_ms is None else self.on_ms - self.off_ms


def windows(configs: Sequence[Configuration]) -> dict[str, Window]:
    """``config_id`` of a timed configuration to the window over its profiled twin."""
    profiled = [c for c in configs if is_profiled(c.cells[0].config) and c.runs]
    found = {}
    for config in timed_only(configs):
        for other in profiled:
            if config.runs and not differences(config.identity, other.identity, "measuring"):
                window = _window(other)
                if window is not None:
                    found[config.config_id] = window
    return found


def _window(config: Configuration) -> Window | None:
    cell = config.runs[-1].cell
    ranks = cell.profiles
    totals = [r.communication_ms for r in ranks if r.communication_ms is not None]
    if not totals or len(totals) != config.runs[-1].world_size:
        return None
    return Window(
        cell=cell.planned.name,
        timeline=ranks[0].timeline,
        steps=ranks[0].steps,
        ranks=len(ranks),
        span_ms=_mean([r.span_ms for r in ranks]),
        computation_ms=_mean([r.computation_ms for r in ranks]),
        total_ms=_mean(totals),
        overlapped_ms=_mean([r.overlapped_ms or 0.0 for r in ranks]),
        least_total_ms=min(totals),
        transfer_ms=_transfer_ms(ranks),
        on_ms=_median_step(cell.steps, ranks[0].reduced_steps),
        off_ms=_median_step(cell.steps, ranks[0].unreduced_steps),
        slower_ms=_later(cell.steps, ranks[0].reduced_steps, ranks[0].unreduced_steps),
    )


def _transfer_ms(ranks: Sequence[WindowProfile]) -> float | None:
    """A step. A collective begins where its rank is ready, and ends everywhere at once."""
    durations = [rank.collectives_ms for rank in ranks]
    if not durations[0] or len({len(each) for each in durations}) > 1:
        return None
    return math.fsum(min(each) for each in zip(*durations, strict=True)) / ranks[0].steps


def _later(
    series: Sequence[StepSeries], reduced: Sequence[int], unreduced: Sequence[int]
) -> float | None:
    """Median *arrival* with reduction less that without, in ms."""
    on, off = (_chosen(series, steps, "arrival") for steps in (reduced, unreduced))
    if on is None or off is None:
        return None
    later = float(np.median(on.mean(axis=0)) - np.median(off.mean(axis=0)))
    return None if np.isnan(later) else later


def _median_step(series: Sequence[StepSeries], steps: Sequence[int]) -> float | None:
    """Median over these steps of the slowest rank's time, in ms."""
    times = _chosen(series, steps, "step")
    return None if times is None else float(np.median(times.max(axis=0)))


def _chosen(
    series: Sequence[StepSeries], steps: Sequence[int], name: str
) -> npt.NDArray[np.float64] | None:
    """Column ``name`` in ms of these steps, shape ``[ranks, steps]``; None without any."""
    if not steps or not series:
        return None
    chosen = [one.column(name)[np.isin(one.rows["step"], steps)] for one in series]
    if len({len(times) for times in chosen}) != 1 or len(chosen[0]) == 0:
        return None
    return np.stack(chosen)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
