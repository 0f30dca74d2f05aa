"""Step time over wall time: what happens to all ranks at once stands out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scalewise.analysis.common_stalls import step_edges_s
from scalewise.analysis.run import Run
from scalewise.analysis.runs import Configuration
from scalewise.analysis.summary import Analysis
from scalewise.records import WARMUP, StepSeries
from scalewise.report import style

MOST_PANELS: Final = 12
_BINS: Final = 600
"""About the pixels of a panel's width: each shows its longest step, so that no spike is lost."""
_LOG_FROM: Final = 10.0
_RANKS_NAMED: Final = 8


def step_times(analysis: Analysis) -> Figure | None:
    """Every step of every run and rank, a panel a configuration; the timed window is shaded."""
    configs = [c for c in analysis.measured if any(_series(run) for run in c.runs)]
    if not configs:
        return None
    shown, left_out = configs[:MOST_PANELS], configs[MOST_PANELS:]
    columns = 1 if len(shown) == 1 else 2
    rows = -(-len(shown) // columns)
    made = style.figure(style.WIDTH_IN if columns == 1 else 12.0, 1.0 + 2.7 * rows)
    grid = made.subplots(rows, columns, squeeze=False).ravel()
    for axes, config in zip(grid, shown, strict=False):
        _draw(axes, config)
    for axes in grid[len(shown) :]:
        axes.remove()
    made.legend(handles=_legend(shown), loc="outside lower center", ncols=5, frameon=False,
                fontsize=9)  # fmt: skip
    if left_out:
        names = ", ".join(config.label for config in left_out)
        made.suptitle(f"not shown: {names}", fontsize=9, wrap=True)
    return made


def _draw(axes: Axes, config: Configuration) -> None:
    lowest, highest = np.inf, 0.0
    for run in config.runs:
        series = _series(run)
        if not series:
            continue
        edges = [step_edges_s(one) for one in series]
        start = min(float(each[0]) for each in edges)
        _shade(axes, series, edges, start, alpha=0.3 / len(config.runs))
        for one, each in zip(series, edges, strict=True):
            steps = one.column("step")
            known = ~np.isnan(steps)
            at, ms = _longest_of_each_bin(each[:-1][known] - start, steps[known])
            if len(ms):
                lowest, highest = min(lowest, float(ms.min())), max(highest, float(ms.max()))
                # A step lasts until the next one: a long one is as wide as it is high.
                until = np.append(at, each[-1] - start)
                axes.plot(until, np.append(ms, ms[-1]), color=style.colour(one.rank), lw=0.8,
                          alpha=0.8, drawstyle="steps-post")  # fmt: skip
    if lowest > 0 and highest > _LOG_FROM * lowest:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    runs = f"{len(config.runs)} {'run' if len(config.runs) == 1 else 'runs'}"
    axes.set_title(f"{config.label} ({runs})", loc="left", fontsize=10)
    axes.set_xlabel("seconds since the first step began", fontsize=9)
    axes.set_ylabel("step time (ms)", fontsize=9)
    axes.margins(x=0.01)
    style.tidy(axes, "both")


def _series(run: Run) -> tuple[StepSeries, ...]:
    return tuple(one for one in run.cell.steps if len(one))


def _shade(
    axes: Axes,
    series: Sequence[StepSeries],
    edges: Sequence[npt.NDArray[np.float64]],
    start: float,
    alpha: float,
) -> None:
    """The time in which any rank's steps were timed."""
    timed = [np.flatnonzero((one.rows["flags"] & WARMUP) == 0) for one in series]
    known = [(each[at[0]], each[at[-1] + 1]) for each, at in zip(edges, timed, strict=True)
             if len(at)]  # fmt: skip
    if known:
        begin, end = min(b for b, _ in known), max(e for _, e in known)
        axes.axvspan(float(begin) - start, float(end) - start, color=style.GREY, alpha=alpha, lw=0)


def _longest_of_each_bin(
    at: npt.NDArray[np.float64], ms: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The same points if they are few, else the highest of each of ``_BINS`` equal times."""
    if len(ms) <= _BINS:
        return at, ms
    bins = np.minimum((at - at[0]) / max(at[-1] - at[0], 1e-9) * _BINS, _BINS - 1).astype(int)
    order = np.lexsort((ms, bins))
    last = np.append(np.diff(bins[order]) > 0, True)
    kept = order[last]
    return at[kept], ms[kept]


def _legend(configs: Sequence[Configuration]) -> list[Line2D]:
    ranks = max(one.rank for c in configs for run in c.runs for one in run.cell.steps) + 1
    handles = [
        Line2D([], [], color=style.colour(rank), label=f"rank {rank}")
        for rank in range(min(ranks, _RANKS_NAMED))
    ]
    window = Line2D([], [], color=style.GREY, alpha=0.3, lw=8, label="timed window")
    return [*handles, window]
