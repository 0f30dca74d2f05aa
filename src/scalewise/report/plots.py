"""Throughput, speedup, steps and losses: each a figure, or None without anything to show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatter, MaxNLocator

from scalewise.analysis import (
    IDLE,
    MIN_EFFICIENCY,
    Analysis,
    Configuration,
    Pair,
    RankSteps,
    RatioEstimate,
    Run,
    figures_of,
    grouped,
    mean_anatomy,
    number,
    phase_word,
)
from scalewise.records import PHASES
from scalewise.report import device_plots, plot_style
from scalewise.report.answer_plot import answer_plot
from scalewise.report.page_data import timed_window
from scalewise.report.plot_style import Draw

_MOST_PANELS: Final = 12
_MOST_DRAWN: Final = 40
"""Configurations."""
_LOG_FROM: Final = 10.0
_RANKS_NAMED: Final = 8


def report_plots(analysis: Analysis) -> dict[str, Draw]:
    """File name to what draws it, for every plot there may be."""
    beneficial = f"efficiency of {MIN_EFFICIENCY:g}: the least that is called beneficial"
    few, of = _first(analysis), len(analysis.measured)
    shown = len(few.measured)
    note = f"{shown} of {of} configurations; report.html has all" if shown < of else ""
    draws: dict[str, Draw] = {
        "throughput.png": lambda: throughput(few.measured),
        "speedup_efficiency.png": partial(
            speedup_efficiency, few.pairs, "", MIN_EFFICIENCY, beneficial
        ),
        "step_times.png": lambda: step_times(few),
        "step_anatomy.png": lambda: step_anatomy(few),
        "loss.png": lambda: loss(few),
        **device_plots.device_plots(few),
    }
    noted: dict[str, Draw] = {name: partial(_noted, draw, note) for name, draw in draws.items()}
    return {"answer.png": lambda: answer_plot(analysis), **noted}


def _first(analysis: Analysis) -> Analysis:
    """With no more configurations than a picture can hold, those that are compared first."""
    pairs = analysis.pairs[: _MOST_DRAWN // 2]
    compared = [config for pair in pairs for config in (pair.single, pair.multi)]
    wanted = dict.fromkeys(c.config_id for c in (*compared, *analysis.measured))
    drawn = {*list(wanted)[:_MOST_DRAWN]}
    configs = tuple(c for c in analysis.configurations if c.config_id in drawn)
    return replace(analysis, configurations=configs, pairs=pairs)


def _noted(draw: Draw, note: str) -> Figure | None:
    made = draw()
    if made is not None and note:
        made.suptitle("; ".join(filter(None, (note, made.get_suptitle()))), fontsize=9, wrap=True)
    return made


def throughput(configs: Sequence[Configuration]) -> Figure | None:
    """Global samples/s with 95 % intervals over runs; every run is a dot."""
    groups = plot_style.by_workload([c for c in configs if c.values("global_samples_per_s")])
    if not groups:
        return None
    made, panels = plot_style.stacked_panels([len(g) for g in groups.values()])
    for axes, (workload, members) in zip(panels, groups.items(), strict=True):
        bars = [(c, mean, c.values("global_samples_per_s")) for c in members
                if (mean := c.estimate("global_samples_per_s"))]  # fmt: skip
        plot_style.interval_bars(axes, workload, bars)
    panels[-1].set_xlabel(
        "samples/s of all devices (bar and number: mean, line: 95 % interval, dots: runs)"
    )
    plot_style.legend_below(made, plot_style.entries_of(*panels), 1)
    return made


def speedup_efficiency(
    pairs: Sequence[Pair], title: str, threshold: float, threshold_words: str
) -> Figure | None:
    """Speedup and efficiency over devices, with intervals, ideal and threshold lines."""
    if not pairs:
        return None
    curves = grouped(pairs, lambda p: p.multi.label.replace(f" x{p.devices}", "", 1))
    made = plot_style.figure(plot_style.WIDTH_IN + 1, 4.6 + 0.22 * len(curves))
    most = max(p.devices for p in pairs)
    readers: tuple[Callable[[Pair], RatioEstimate], ...] = (
        lambda p: p.speedup,
        lambda p: p.efficiency,
    )
    titles = ("speedup over one device", "efficiency")
    panels = plot_style.grid_of_panels(made, 1, 2, 2)
    found: dict[Axes, list[tuple[float, RatioEstimate, str]]] = {axes: [] for axes in panels}
    for axes, read, words in zip(panels, readers, titles, strict=True):
        for i, (name, members) in enumerate(curves.items()):
            shift = 0.03 * most * (i - (len(curves) - 1) / 2) / max(len(curves) - 1, 1)
            points = [(p.devices + shift, read(p)) for p in sorted(members, key=_devices_of)]
            _ratio_points(axes, points, name, i)
            found[axes] += [(x, ratio, plot_style.colour(i)) for x, ratio in points]
        axes.set(xlabel="devices", title=f"{title}{words}")
        axes.set_xticks(sorted({1, *(p.devices for p in pairs)}))
        axes.set_xlim(1 - 0.06 * most, most * 1.08)
        axes.set_ylim(0, max(axes.get_ylim()[1], 1.15))
        plot_style.tidy(axes, "both")
    speedup, efficiency = panels
    speedup.plot([1, most], [1, most], "--", color=plot_style.GREY, label="ideal")
    efficiency.axhline(1, ls="--", color=plot_style.GREY)
    efficiency.axhline(threshold, ls=":", color=plot_style.GREY, label=threshold_words)
    _limit_ratios(speedup, found[speedup], most)
    _limit_ratios(efficiency, found[efficiency], 1.0)
    plot_style.legend_below(made, plot_style.entries_of(*panels), 2)
    return made


def _ratio_points(
    axes: Axes,
    points: Sequence[tuple[float, RatioEstimate]],
    name: str,
    index: int,
) -> None:
    """A marker a pair with its interval, and a line through them from 1 on one device."""
    x, ratios = [at for at, _ in points], [ratio for _, ratio in points]
    values = [r.value for r in ratios]
    low = [r.value - r.interval.low if r.interval else 0.0 for r in ratios]
    high = [r.interval.high - r.value if r.interval else 0.0 for r in ratios]
    colour = plot_style.colour(index)
    axes.plot([1, *x], [1, *values], color=colour, lw=1, alpha=0.6)
    axes.errorbar(x, values, yerr=[low, high], fmt=plot_style.marker(index), ms=6, capsize=3,
                  color=colour, label=name)  # fmt: skip


def _devices_of(pair: Pair) -> int:
    return pair.devices


def _limit_ratios(
    axes: Axes, points: Sequence[tuple[float, RatioEstimate, str]], ideal: float
) -> None:
    """Intervals that dwarf every ratio leave the axes, with a triangle; the ``ideal`` stays."""
    limit = plot_style.WIDEST * max(ideal, *(figure.value for _, figure, _ in points))
    if axes.get_ylim()[1] <= limit:
        return
    for x, figure, colour in points:
        if figure.interval and figure.interval.high > limit:
            plot_style.beyond(axes, x, limit, "^", colour)
    axes.set_ylim(0, limit)


def step_anatomy(analysis: Analysis) -> Figure | None:
    """Where a step goes: stacked mean ms of each phase."""
    anatomies = {c.config_id: a for c in analysis.measured if (a := mean_anatomy(c))}
    groups = plot_style.by_workload([c for c in analysis.measured if c.config_id in anatomies])
    if not groups:
        return None
    made, panels = plot_style.stacked_panels([len(g) for g in groups.values()])
    shown: dict[str, Artist] = {}
    for axes, (workload, configs) in zip(panels, groups.items(), strict=True):
        for row, config in enumerate(configs):
            phases, step_ms, timeline = anatomies[config.config_id]
            left = 0.0
            for i, phase in enumerate(PHASES):
                ms = phases.get(phase)
                if ms is not None:
                    word = phase_word(config, phase)
                    idle = word == IDLE
                    hatch = "///" if phase == "exposed_comm" else "..." if idle else None
                    colour = plot_style.GREY if idle else plot_style.colour(i)
                    bar = axes.barh(row, ms, left=left, color=colour, height=0.7,
                                    hatch=hatch, edgecolor="white", linewidth=0.5)  # fmt: skip
                    shown.setdefault(word, bar[0])
                    left += ms
            axes.text(left, row, f"  {number(step_ms)} ms ({timeline})", va="center", fontsize=8)
        plot_style.name_rows(axes, [plot_style.short_label(c) for c in configs])
        axes.set_title(workload, loc="left", fontsize=11)
        axes.set_xlim(0, axes.get_xlim()[1] * 1.2)
        plot_style.tidy(axes)
    panels[-1].set_xlabel("mean ms a step, over runs and ranks (device or host clock)")
    plot_style.legend_below(made, shown, 4)
    return made


def loss(analysis: Analysis) -> Figure | None:
    """Loss over samples fed, a line a run: speed is worth what it reaches."""
    known = [c for c in analysis.measured if any(r.loss_history for r in c.runs)]
    groups = plot_style.by_workload(known)
    if not groups:
        return None
    columns = 2 if len(groups) in (2, 4) else min(3, len(groups))
    rows = -(-len(groups) // columns)
    made = plot_style.figure(1.5 + 4.2 * columns, 4.0 * rows)
    panels = plot_style.grid_of_panels(made, rows, columns, len(groups))
    for axes, (workload, configs) in zip(panels, groups.items(), strict=True):
        curves = [
            (
                plot_style.short_label(c),
                [(h.samples, h.values) for r in c.runs if (h := r.loss_history)],
            )
            for c in configs
        ]
        names = sorted({r.loss_history.name for c in configs for r in c.runs if r.loss_history})
        draw_curves(axes, workload, curves, ", ".join(names))
    return made


Curve = tuple[Sequence[int], Sequence[float]]


def draw_curves(
    axes: Axes,
    title: str,
    curves: Sequence[tuple[str, Sequence[Curve]]],
    what: str,
    over: str = "samples fed by all devices",
) -> None:
    """Curves over samples fed or ``over``: a colour a configuration, a line a run; of the first."""
    if len(curves) > _MOST_PANELS:
        title += f" (the first {_MOST_PANELS} of {len(curves)})"
        curves = curves[:_MOST_PANELS]
    labels = plot_style.told_apart([label for label, _ in curves])
    for i, (label, (_, runs)) in enumerate(zip(labels, curves, strict=True)):
        for j, (samples, values) in enumerate(runs):
            lonely = plot_style.marker(i) if len(samples) < 3 else None
            axes.plot(samples, values, color=plot_style.colour(i), lw=1.4,
                      alpha=0.9 if len(runs) == 1 else 0.6, marker=lonely,
                      ls=("-", "--", "-.", ":")[i % 4],
                      label=label if j == 0 else None)  # fmt: skip
    axes.set(xlabel=over, ylabel=what)
    axes.set_title(title, loc="left", fontsize=11)
    plot_style.group_thousands(axes, "x")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    legend: dict[str, Any] = {"frameon": False, "fontsize": 8}
    if labels != [label for label, _ in curves]:  # still long: below, where nothing is hidden
        legend |= {"title": "else as most", "title_fontsize": 7, "fontsize": 7, "alignment": "left",
                   "loc": "upper left", "bbox_to_anchor": (0, -0.2)}  # fmt: skip
    axes.legend(**legend)
    plot_style.tidy(axes, "both")


def step_times(analysis: Analysis) -> Figure | None:
    """Every step of every run and rank, a panel a configuration; the timed window is shaded."""
    configs = [c for c in analysis.measured if any(_ranks(run) for run in c.runs)]
    if not configs:
        return None
    shown, left_out = configs[:_MOST_PANELS], configs[_MOST_PANELS:]
    columns = 1 if len(shown) == 1 else 2
    rows = -(-len(shown) // columns)
    made = plot_style.figure(plot_style.WIDTH_IN if columns == 1 else 12.0, 1.0 + 2.7 * rows)
    panels = plot_style.grid_of_panels(made, rows, columns, len(shown))
    for axes, config in zip(panels, shown, strict=True):
        _draw_steps(axes, config)
    ranks = max(one.rank for c in shown for run in c.runs for one in _ranks(run)) + 1
    entries: dict[str, Artist] = {
        f"rank {rank}": Line2D([], [], color=plot_style.colour(rank))
        for rank in range(min(ranks, _RANKS_NAMED))
    }
    entries["timed window"] = Line2D([], [], color=plot_style.GREY, alpha=0.3, lw=8)
    plot_style.legend_below(made, entries, 5)
    if left_out:
        names = ", ".join(config.label for config in left_out)
        made.suptitle(f"not shown: {names}", fontsize=9, wrap=True)
    return made


def _draw_steps(axes: Axes, config: Configuration) -> None:
    lowest, highest = np.inf, 0.0
    for run in config.runs:
        ranks = _ranks(run)
        edges = [one.edges_s for one in ranks if one.edges_s is not None]
        start = min((each[0] for each in edges), default=0.0)
        if (timed := timed_window(ranks, start)) is not None:
            axes.axvspan(*timed, color=plot_style.GREY, alpha=0.3 / len(config.runs), lw=0)
        for one, each in zip(ranks, edges, strict=True):
            at, ms = np.array(one.began_s) + each[0] - start, np.array(one.step_ms)
            if len(ms):
                lowest, highest = min(lowest, float(ms.min())), max(highest, float(ms.max()))
                # A step lasts until the next one: a long one is as wide as it is high.
                axes.plot(np.append(at, each[2] - start), np.append(ms, ms[-1]), lw=0.8, alpha=0.8,
                          color=plot_style.colour(one.rank), drawstyle="steps-post")  # fmt: skip
    if lowest > 0 and highest > _LOG_FROM * lowest:
        axes.set_yscale("log")
        # The default formatters write mathematics.
        for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            set_formatter(LogFormatter(minor_thresholds=(1.5, 0.4)))
    else:
        axes.set_ylim(bottom=0)
    runs = f"{len(config.runs)} {'run' if len(config.runs) == 1 else 'runs'}"
    axes.set_title(f"{config.label} ({runs})", loc="left", fontsize=10)
    axes.set_xlabel("seconds since the first step began", fontsize=9)
    axes.set_ylabel("step time (ms)", fontsize=9)
    axes.margins(x=0.01)
    plot_style.tidy(axes, "both")


def _ranks(run: Run) -> list[RankSteps]:
    return [one for one in figures_of(run.cell).ranks if one.steps]
