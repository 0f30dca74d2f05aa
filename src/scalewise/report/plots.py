"""The plots of a report. Each returns a figure, or None where there is nothing to draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from scalewise.analysis.balance import GRADES, cv_text
from scalewise.analysis.limits import IDLE, mean_anatomy, phase_word
from scalewise.analysis.runs import Configuration, Metric
from scalewise.analysis.scaling import Pair
from scalewise.analysis.statistics import RatioEstimate
from scalewise.analysis.summary import Analysis
from scalewise.analysis.verdict import MIN_EFFICIENCY
from scalewise.records import PHASES
from scalewise.report import style
from scalewise.report.tables import number

_WIDTH_IN: Final = 9.0
_WIDEST: Final = 1.6
"""Length of the throughput axis in its largest run."""


def draw_all(analysis: Analysis) -> dict[str, Figure]:
    """File name to figure, for every plot that has something to show."""
    drawn = {name: draw(analysis) for name, draw in _PLOTS.items()}
    return {name: made for name, made in drawn.items() if made is not None}


def throughput(analysis: Analysis) -> Figure | None:
    """Global samples/s with 95 % intervals over runs; every run is a dot."""
    groups = _by_workload([c for c in analysis.measured if c.values("samples_per_s")])
    if not groups:
        return None
    made, panels = style.stacked_panels(_WIDTH_IN, [len(g) for g in groups.values()])
    for axes, (workload, configs) in zip(panels, groups.items(), strict=True):
        for row, config in enumerate(configs):
            _throughput_bar(axes, row, config)
        # Before the bar: at the end of an interval the mean would be read as that end's value.
        _name_rows(axes, [f"{_short(c, workload)}:  {_mean(c)}" for c in configs])
        axes.set_title(workload, loc="left", fontsize=11)
        _limit_intervals(axes, configs)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x >= 10 else f"{x:g}")
        style.tidy(axes)
    panels[-1].set_xlabel(
        "samples/s of all devices (bar and number: mean, line: 95 % interval, dots: runs)"
    )
    return made


def speedup_efficiency(analysis: Analysis) -> Figure | None:
    """Speedup and efficiency over devices, with intervals, ideal and threshold lines."""
    if not analysis.pairs:
        return None
    curves: dict[str, list[Pair]] = {}
    for pair in analysis.pairs:
        curves.setdefault(curve_name(pair), []).append(pair)
    made = style.figure(_WIDTH_IN + 1, 4.6 + 0.22 * len(curves))
    left, right = made.subplots(1, 2)
    most = max(p.devices for p in analysis.pairs)
    for i, (name, pairs) in enumerate(curves.items()):
        shift = 0.03 * most * (i - (len(curves) - 1) / 2) / max(len(curves) - 1, 1)
        _ratio_curve(left, pairs, lambda p: p.speedup, name, i, shift)
        _ratio_curve(right, pairs, lambda p: p.efficiency, name, i, shift)
    left.plot([1, most], [1, most], "--", color=style.GREY, label="ideal")
    right.axhline(1, ls="--", color=style.GREY)
    least = f"efficiency of {MIN_EFFICIENCY:g}: the least that is called beneficial"
    right.axhline(MIN_EFFICIENCY, ls=":", color=style.GREY, label=least)
    devices = sorted({1, *(p.devices for p in analysis.pairs)})
    for axes, title in ((left, "speedup over one device"), (right, "efficiency")):
        axes.set(xlabel="devices", title=title)
        axes.set_xticks(devices)
        axes.set_xlim(1 - 0.06 * most, most * 1.08)
        axes.set_ylim(0, max(axes.get_ylim()[1], 1.15))
        style.tidy(axes, "both")
    named = [axes.get_legend_handles_labels() for axes in (left, right)]
    entries = {label: handle for handles, labels in named
               for handle, label in zip(handles, labels, strict=True)}  # fmt: skip
    made.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=2,
                frameon=False, fontsize=9)  # fmt: skip
    return made


def step_anatomy(analysis: Analysis) -> Figure | None:
    """Where a step goes: stacked mean ms of each phase."""
    anatomies = {c.config_id: a for c in analysis.measured if (a := mean_anatomy(c))}
    groups = _by_workload([c for c in analysis.measured if c.config_id in anatomies])
    if not groups:
        return None
    made, panels = style.stacked_panels(_WIDTH_IN, [len(g) for g in groups.values()])
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
        _name_rows(axes, [_short(c, workload) for c in configs])
        axes.set_title(workload, loc="left", fontsize=11)
        axes.set_xlim(0, axes.get_xlim()[1] * 1.2)
        style.tidy(axes)
    panels[-1].set_xlabel("mean ms a step, over runs and ranks (device or host clock)")
    made.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=4,
                frameon=False, fontsize=9)  # fmt: skip
    return made


def loss(analysis: Analysis) -> Figure | None:
    """Loss over samples fed, a line a run: speed is worth what it reaches."""
    groups = _by_workload([c for c in analysis.measured if any(r.loss_history for r in c.runs)])
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
                          label=_short(config, workload) if j == 0 else None)  # fmt: skip
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


def balance(analysis: Analysis) -> Figure | None:
    """Arrival of every rank, and the CVs across ranks with their grades."""
    configs = [c for c in analysis.measured if any(r.balance for r in c.runs)]
    if not configs:
        return None
    ranks = max(c.runs[0].world_size for c in configs)
    made = style.figure(_WIDTH_IN + 1, 2.0 + max(0.55, 0.11 * ranks) * len(configs))
    left, right = made.subplots(1, 2, sharey=True)
    for row, config in enumerate(configs):
        _arrivals(left, row, config)
    left.axvline(0, color=style.GREY, lw=1)
    most = max(map(abs, left.get_xlim()))
    reach = max(most * 1.1, 1.0)  # below 1 % the ranks arrive together: do not zoom into noise
    left.set_xlim(-reach, reach)
    _cv_bars(right, configs)
    _name_rows(left, [c.label for c in configs])
    left.set_title("arrival of each rank (rank 0 on top)", fontsize=11)
    left.set_xlabel("against the mean of the ranks (%)")
    right.set_title("CV across ranks: only arrival judges load", fontsize=11, pad=18)
    right.set_xlabel("CV (%)")
    for axes in (left, right):
        style.tidy(axes)
    handles, labels = right.get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower right", ncols=4, frameon=False, fontsize=9)
    return made


def _throughput_bar(axes: Axes, row: int, config: Configuration) -> None:
    figure = config.estimate("samples_per_s")
    assert figure is not None
    colour = style.colour(0 if config.devices == 1 else 1)
    axes.barh(row, figure.value, height=0.65, color=colour, alpha=0.85)
    values = config.values("samples_per_s")
    if figure.interval is not None:
        low, high = figure.interval.low, figure.interval.high
        axes.plot([low, high], [row, row], color="black", lw=1.6)
    axes.plot(values, [row] * len(values), "o", ms=3, mfc="white", mec="black", mew=0.8)


def _mean(config: Configuration) -> str:
    figure = config.estimate("samples_per_s")
    return number(figure.value if figure else None)


def _limit_intervals(axes: Axes, configs: Sequence[Configuration]) -> None:
    """Few wild runs have intervals that dwarf every bar: those leave the axes, with an arrow."""
    most = max(value for config in configs for value in config.values("samples_per_s"))
    limit = min(axes.get_xlim()[1], _WIDEST * most)
    for row, config in enumerate(configs):
        figure = config.estimate("samples_per_s")
        if figure and figure.interval and figure.interval.high > limit:
            axes.plot([limit], [row], ">", color="black", ms=6, clip_on=False)
    axes.set_xlim(0, limit)


def _ratio_curve(
    axes: Axes,
    pairs: Sequence[Pair],
    read: Callable[[Pair], RatioEstimate],
    name: str,
    index: int,
    shift: float,
) -> None:
    ordered = sorted(pairs, key=lambda p: p.devices)
    x = np.array([p.devices + shift for p in ordered])
    y = np.array([read(p).value for p in ordered])
    axes.plot([1, *x], [1, *y], color=style.colour(index), lw=1, alpha=0.6)
    ratio_points(axes, ordered, read, name, index, shift)


def ratio_points(
    axes: Axes,
    pairs: Sequence[Pair],
    read: Callable[[Pair], RatioEstimate],
    name: str,
    index: int,
    shift: float,
) -> None:
    """A marker a pair at its number of devices, moved by ``shift``, with its interval."""
    ratios = [read(p) for p in pairs]
    low = [r.value - r.interval.low if r.interval else 0.0 for r in ratios]
    high = [r.interval.high - r.value if r.interval else 0.0 for r in ratios]
    x = [p.devices + shift for p in pairs]
    axes.errorbar(x, [r.value for r in ratios], yerr=[low, high], fmt=style.marker(index), ms=6,
                  capsize=3, color=style.colour(index), label=name)  # fmt: skip


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
        "utilisation": "utilization_cv_percent",
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
                    axes.text(cv, position, f" {cv_text(cv)}", va="center", fontsize=8)
    axes.set_xlim(0, max(highest * 1.1, 6.0))
    shown = axes.get_xlim()[1]
    start = 0.0
    for grade, below in GRADES.items():
        end = min(below, shown)
        if end - start > 0:
            axes.axvline(start, ls=":", color=style.GREY, lw=1)
        if end - start > 0.12 * shown:
            at = axes.get_xaxis_transform()
            axes.text((start + end) / 2, 1.0, grade, transform=at, fontsize=8, ha="center",
                      va="bottom", color="#555555")  # fmt: skip
        start = end


def _by_workload(configs: Sequence[Configuration]) -> dict[str, list[Configuration]]:
    groups: dict[str, list[Configuration]] = {}
    for config in configs:
        model, dataset = config.name("model"), config.name("dataset")
        name = f"{model} on {dataset}" if model and dataset else config.label
        groups.setdefault(name, []).append(config)
    return groups


def _short(config: Configuration, workload: str) -> str:
    """The label without the model, which the panel's title names already."""
    return config.label.removeprefix(f"{config.name('model')} ")


def curve_name(pair: Pair) -> str:
    """The configuration without its number of devices."""
    return pair.multi.label.replace(f" x{pair.devices}", "", 1)


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)  # the first on top


_PLOTS: Final[Mapping[str, Callable[[Analysis], Figure | None]]] = {
    "throughput.png": throughput,
    "speedup_efficiency.png": speedup_efficiency,
    "step_anatomy.png": step_anatomy,
    "loss.png": loss,
    "balance.png": balance,
}
NAMES: Final = tuple(_PLOTS)
"""Every plot there may be."""
