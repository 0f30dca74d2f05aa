"""Arrival of each rank, and how far the ranks are apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scalewise.analysis.balance import cv_text, grade
from scalewise.analysis.figures import number
from scalewise.analysis.runs import Configuration, Metric
from scalewise.analysis.summary import Analysis
from scalewise.report import style
from scalewise.report.panels import name_rows


def balance(analysis: Analysis) -> Figure | None:
    """Arrival of every rank, and the CVs across ranks with their grades."""
    configs = [c for c in analysis.measured if any(r.balance for r in c.runs)]
    if not configs:
        return None
    ranks = max(c.runs[0].world_size for c in configs)
    made = style.figure(style.WIDTH_IN + 1, 2.0 + max(0.55, 0.11 * ranks) * len(configs))
    left, right = made.subplots(1, 2, sharey=True)
    for row, config in enumerate(configs):
        _arrivals(left, row, config)
    left.axvline(0, color=style.GREY, lw=1)
    most = max(map(abs, left.get_xlim()))
    reach = max(most * 1.1, 1.0)  # below 1 % the ranks arrive together: do not zoom into noise
    left.set_xlim(-reach, reach)
    _cv_bars(right, configs)
    name_rows(left, [c.label for c in configs])
    left.set_title("arrival of each rank (rank 0 on top)", fontsize=11)
    left.set_xlabel("against the mean of the ranks (%)")
    right.set_title("CV across ranks: only arrival judges load", fontsize=11)
    right.set_xlabel("CV (%)")
    for axes in (left, right):
        style.tidy(axes)
    handles, labels = right.get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower right", ncols=4, frameon=False, fontsize=9)
    return made


def _arrivals(axes: Axes, row: int, config: Configuration) -> None:
    """A dot a rank, one under the other: its mean arrival against the mean of all, in percent."""
    means = np.mean([run.balance.arrival_ms for run in config.runs if run.balance], axis=0)
    offsets = 100 * (means / means.mean() - 1)
    heights = row + np.linspace(-0.3, 0.3, len(means))
    axes.hlines(heights, 0, offsets, color=style.colour(0), lw=2)
    axes.plot(offsets, heights, "o", color=style.colour(0), ms=4)
    slowest = int(np.argmax(means))
    # On the empty side of the zero line: the slowest rank's own line is on the other.
    axes.annotate(
        f"rank {slowest}: {number(float(means[slowest]))} ms",
        (0, float(heights[slowest])),
        xytext=(-6, 0),
        textcoords="offset points",
        ha="right",
        va="center",
        fontsize=8,
    )


def _cv_bars(axes: Axes, configs: Sequence[Configuration]) -> None:
    metrics: dict[str, Metric] = {
        "arrival": "arrival_cv_percent",
        "memory": "memory_cv_percent",
        "CPU time" if configs[0].is_cpu else "utilisation": "utilization_cv_percent",
        "power": "power_cv_percent",
    }
    highest = 0.0
    for i, (name, metric) in enumerate(metrics.items()):
        figures = [config.estimate(metric) for config in configs]
        known = [(row, f.value) for row, f in enumerate(figures) if f]
        if known:
            rows, cvs = zip(*known, strict=True)
            positions = [r + 0.2 * (i - 1.5) for r in rows]
            axes.barh(positions, cvs, height=0.18, color=style.colour(i), label=name)
            highest = max(highest, *cvs)
            if name == "arrival":
                for position, cv in zip(positions, cvs, strict=True):
                    said = f" {cv_text(cv)} {grade(cv)}"
                    axes.text(cv, position, said, va="center", fontsize=8)
    axes.set_xlim(0, max(highest * 1.3, 6.0))
