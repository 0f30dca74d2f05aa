"""The plots of a report. Each returns a figure, or None where there is nothing to draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from scalewise.analysis.figures import number
from scalewise.analysis.limits import IDLE, mean_anatomy, phase_word
from scalewise.analysis.summary import Analysis
from scalewise.records import PHASES
from scalewise.report import style
from scalewise.report.panels import by_workload, name_rows, short_label
from scalewise.report.plots_balance import balance
from scalewise.report.plots_scaling import speedup_efficiency, throughput
from scalewise.report.plots_steps import step_times


def draw_all(analysis: Analysis) -> dict[str, Figure]:
    """File name to figure, for every plot that has something to show."""
    drawn = {name: draw(analysis) for name, draw in _PLOTS.items()}
    return {name: made for name, made in drawn.items() if made is not None}


def step_anatomy(analysis: Analysis) -> Figure | None:
    """Where a step goes: stacked mean ms of each phase."""
    anatomies = {c.config_id: a for c in analysis.measured if (a := mean_anatomy(c))}
    groups = by_workload([c for c in analysis.measured if c.config_id in anatomies])
    if not groups:
        return None
    made, panels = style.stacked_panels(style.WIDTH_IN, [len(g) for g in groups.values()])
    shown: dict[str, Artist] = {}
    for axes, (workload, configs) in zip(panels, groups.items(), strict=True):
        for row, config in enumerate(configs):
            phases, step_ms, line = anatomies[config.config_id]
            left = 0.0
            for i, phase in enumerate(PHASES):
                ms = phases.get(phase)
                if ms is not None:
                    word = phase_word(config, phase)
                    idle = word == IDLE
                    hatch = "///" if phase == "exposed_comm" else "..." if idle else None
                    colour = style.GREY if idle else style.colour(i)
                    bar = axes.barh(row, ms, left=left, color=colour, height=0.7,
                                    hatch=hatch, edgecolor="white", linewidth=0.5)  # fmt: skip
                    shown.setdefault(word, bar[0])
                    left += ms
            axes.text(left, row, f"  {number(step_ms)} ms ({line})", va="center", fontsize=8)
        name_rows(axes, [short_label(c, workload) for c in configs])
        axes.set_title(workload, loc="left", fontsize=11)
        axes.set_xlim(0, axes.get_xlim()[1] * 1.2)
        style.tidy(axes)
    panels[-1].set_xlabel("mean ms a step, over runs and ranks (device or host clock)")
    made.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=4,
                frameon=False, fontsize=9)  # fmt: skip
    return made


def loss(analysis: Analysis) -> Figure | None:
    """Loss over samples fed, a line a run: speed is worth what it reaches."""
    groups = by_workload([c for c in analysis.measured if any(r.loss_history for r in c.runs)])
    if not groups:
        return None
    columns = 2 if len(groups) in (2, 4) else min(3, len(groups))
    rows = -(-len(groups) // columns)
    made = style.figure(1.5 + 4.2 * columns, 4.0 * rows)
    grid = made.subplots(rows, columns, squeeze=False).ravel()
    for axes, (workload, configs) in zip(grid, groups.items(), strict=False):
        for i, config in enumerate(configs):
            curves = [run.loss_history for run in config.runs if run.loss_history]
            for j, curve in enumerate(curves):
                lonely = style.marker(i) if len(curve.samples) < 3 else None
                axes.plot(curve.samples, curve.values, color=style.colour(i), lw=1.4,
                          alpha=0.9 if len(curves) == 1 else 0.6, marker=lonely,
                          ls=("-", "--", "-.", ":")[i % 4],
                          label=short_label(config, workload) if j == 0 else None)  # fmt: skip
        names = sorted({r.loss_history.name for c in configs for r in c.runs if r.loss_history})
        axes.set(xlabel="samples fed by all devices", ylabel=", ".join(names))
        axes.set_title(workload, loc="left", fontsize=11)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.legend(frameon=False, fontsize=8)
        style.tidy(axes, "both")
    for axes in grid[len(groups) :]:
        axes.remove()
    return made


_PLOTS: Final[Mapping[str, Callable[[Analysis], Figure | None]]] = {
    "throughput.png": throughput,
    "speedup_efficiency.png": speedup_efficiency,
    "step_times.png": step_times,
    "step_anatomy.png": step_anatomy,
    "loss.png": loss,
    "balance.png": balance,
}
NAMES: Final = tuple(_PLOTS)
"""Every plot there may be."""
