"""The answer, throughput, speedup and parts of a step: each a figure, or None without any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from scalewise.analysis import (
    IDLE,
    MIN_EFFICIENCY,
    Analysis,
    Configuration,
    Pair,
    RatioEstimate,
    between,
    bounding,
    factor,
    grouped,
    number,
)
from scalewise.records import PHASES
from scalewise.report import plot_style
from scalewise.report.plot_style import Draw

_MOST_DRAWN: Final = 40
"""Configurations."""


def report_plots(analysis: Analysis) -> dict[str, Draw]:
    """File name to what draws it: what report.md shows. report.html draws more, of every run."""
    least = f"efficiency of {MIN_EFFICIENCY:g}: the least that pays"
    few, of = _first(analysis), len(analysis.measured)
    shown = len(few.measured)
    note = f"{shown} of {of} configurations; report.html has all" if shown < of else ""
    draws: dict[str, Draw] = {
        "throughput.png": lambda: None if few.pairs else throughput(few.measured),
        "speedup_efficiency.png": partial(speedup_efficiency, few.pairs, "", MIN_EFFICIENCY, least),
        "step_anatomy.png": lambda: step_anatomy(few),
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
            points = [
                (p.devices + shift, read(p)) for p in sorted(members, key=lambda p: p.devices)
            ]
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
    axes: Axes, points: Sequence[tuple[float, RatioEstimate]], name: str, index: int
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
    anatomies = {c.config_id: a for c in analysis.measured if (a := c.anatomy)}
    groups = plot_style.by_workload([c for c in analysis.measured if c.config_id in anatomies])
    if not groups:
        return None
    made, panels = plot_style.stacked_panels([len(g) for g in groups.values()])
    shown: dict[str, Artist] = {}
    for axes, (workload, configs) in zip(panels, groups.items(), strict=True):
        for row, config in enumerate(configs):
            anatomy = anatomies[config.config_id]
            left = 0.0
            for i, phase in enumerate(PHASES):
                ms = anatomy.phases_ms.get(phase)
                if ms is not None:
                    word = config.phase_word(phase)
                    idle = word == IDLE
                    hatch = "///" if phase == "exposed_comm" else "..." if idle else None
                    colour = plot_style.GREY if idle else plot_style.colour(i)
                    bar = axes.barh(row, ms, left=left, color=colour, height=0.7,
                                    hatch=hatch, edgecolor="white", linewidth=0.5)  # fmt: skip
                    shown.setdefault(word, bar[0])
                    left += ms
            axes.text(
                left,
                row,
                f"  {number(anatomy.step_ms)} ms ({anatomy.timeline})",
                va="center",
                fontsize=8,
            )
        plot_style.name_rows(axes, [plot_style.short_label(c) for c in configs])
        axes.set_title(workload, loc="left", fontsize=11)
        axes.set_xlim(0, axes.get_xlim()[1] * 1.2)
        plot_style.tidy(axes)
    panels[-1].set_xlabel("mean ms a step, over runs and ranks (device or host clock)")
    plot_style.legend_below(made, shown, 4)
    return made


_MOST_ROWS: Final = 16
_LONGEST_NAME: Final = 36
_BANDS: Final = {"does not pay": "#f6d0b8", "pays": "#bfe6d8"}
_INKS: Final = {"pays": "#00664d", "does not pay": "#b3400a", "invalid": "#b3400a"}
_OPEN_INK: Final = "#8a6100"


def answer_plot(analysis: Analysis) -> Figure | None:
    """A row a comparison; None without any. Left: speedup, a dot a run. Right: cost of a sample."""
    shown = analysis.pairs[:_MOST_ROWS]
    if not shown:
        return None
    made = plot_style.figure(10.5, 1.9 + 0.62 * len(shown))
    speedups, costs = plot_style.grid_of_panels(made, 1, 2, 2, sharey=True, width_ratios=(3, 2))
    of_cost = [analysis.cost_ratio(pair) for pair in shown]
    least = [1.15 * pair.judgement.wanted for pair in shown]
    # The ideal stands on the scale where it is near.
    least += [p.devices for p in shown if p.devices < 1.6 * p.speedup.value]
    limit = _limit([pair.speedup for pair in shown], least)
    for row, pair in enumerate(shown):
        _bands(speedups, row, pair.judgement.wanted, limit)
        if pair.devices < limit:
            speedups.plot([pair.devices] * 2, [row - 0.42, row + 0.42], "--", color="black",
                          lw=1.2, label="ideal")  # fmt: skip
        runs = pair.run_speedups
        speedups.plot(runs, [row + 0.22] * len(runs), "o", ms=4.5, mfc="none", clip_on=False,
                      mec=plot_style.colour(0), mew=1.1)  # fmt: skip
        _figure(speedups, row, pair.speedup, limit)
    speedups.set_xlim(0, limit)
    speedups.set_title("speedup over one device", fontsize=10, loc="left")
    most = _limit([one for one in of_cost if one], [1.3])
    for row, figure in enumerate(of_cost):
        if figure is not None:
            _figure(costs, row, figure, most)
    costs.axvline(1, color=plot_style.GREY, lw=1)
    costs.set_xlim(0, most)
    costs.set_title("cost of a sample over one device", fontsize=10, loc="left")
    names = [plot_style.drawn(pair.multi.label, _LONGEST_NAME) for pair in shown]
    verdicts = [pair.verdict for pair in shown]
    plot_style.name_rows(speedups, [*map("{}\n{}".format, names, verdicts)])
    for label, pair in zip(speedups.get_yticklabels(), shown, strict=True):
        label.set_color(_INKS.get(pair.verdict, _OPEN_INK))
    for axes in (speedups, costs):
        plot_style.tidy(axes)
    made.suptitle(_title(analysis.pairs), x=0.01, ha="left", fontsize=13, fontweight="bold")
    plot_style.legend_below(made, _entries(speedups, costs), 4)
    return made


def _limit(figures: Sequence[RatioEstimate], least: Sequence[float]) -> float:
    """End of an axis that holds every figure, and every interval that is not far beyond them."""
    most = max([*least, *(figure.value for figure in figures)])
    ends = [found.high for figure in figures if (found := bounding(figure))]
    return 1.06 * max(most, min(max(ends, default=0.0), plot_style.WIDEST * most))


def _bands(axes: Axes, row: int, wanted: float, limit: float) -> None:
    edges = (0.0, wanted, limit)
    for (_, colour), low, high in zip(_BANDS.items(), edges, edges[1:], strict=False):
        axes.barh(row, high - low, left=low, height=0.86, color=colour, zorder=0)


def _figure(axes: Axes, row: int, found: RatioEstimate, limit: float) -> None:
    ink, at = plot_style.colour(0), row - 0.08
    interval = bounding(found)
    if interval is not None:
        high = min(interval.high, limit)
        axes.plot([interval.low, high], [at, at], color=ink, lw=2)
        if interval.high > limit:
            plot_style.beyond(axes, limit, at, ">", ink)
    axes.plot(found.value, at, "D", ms=6, color=ink)
    axes.annotate(f"{factor(found.value)}x", (found.value, at), xytext=(0, 7), ha="center",
                  textcoords="offset points", fontsize=9, fontweight="bold")  # fmt: skip


def _title(pairs: Sequence[Pair]) -> str:
    """The verdict; of many, how many of each, and how many are shown."""
    if len(pairs) == 1:
        (pair,) = pairs
        interval = bounding(pair.speedup)
        bounds = f" ({between(factor(interval.low), factor(interval.high))})" if interval else ""
        verdict, speedup = pair.verdict, factor(pair.speedup.value)
        name = plot_style.drawn(pair.multi.label, 2 * _LONGEST_NAME)
        return f"{name}: {verdict}, {speedup}x{bounds}"
    counts = Counter(pair.verdict for pair in pairs)
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    shown = f"; the first {_MOST_ROWS} are shown" if len(pairs) > _MOST_ROWS else ""
    return f"{len(pairs)} comparisons: {told}{shown}"


def _entries(*panels: Axes) -> dict[str, Artist]:
    ink = plot_style.colour(0)
    return {
        **{f"band: {name}": Patch(color=colour) for name, colour in _BANDS.items()},
        "a run": Line2D([], [], ls="", marker="o", mfc="none", color=ink),
        "mean and 95 % interval": Line2D([], [], marker="D", color=ink),
        **plot_style.entries_of(*panels),
    }
