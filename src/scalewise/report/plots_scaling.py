"""Throughput, speedup and efficiency with their intervals over runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scalewise.analysis.figures import number
from scalewise.analysis.runs import Configuration
from scalewise.analysis.scaling import Pair
from scalewise.analysis.statistics import RatioEstimate
from scalewise.analysis.summary import Analysis
from scalewise.analysis.verdict import MIN_EFFICIENCY
from scalewise.report import style
from scalewise.report.panels import by_workload, name_rows, short_label


def throughput(analysis: Analysis) -> Figure | None:
    """Global samples/s with 95 % intervals over runs; every run is a dot."""
    groups = by_workload([c for c in analysis.measured if c.values("samples_per_s")])
    if not groups:
        return None
    made, panels = style.stacked_panels(style.WIDTH_IN, [len(g) for g in groups.values()])
    for axes, (workload, configs) in zip(panels, groups.items(), strict=True):
        for row, config in enumerate(configs):
            _throughput_bar(axes, row, config)
        # Before the bar: at the end of an interval the mean would be read as that end's value.
        name_rows(axes, [f"{short_label(c, workload)}:  {_mean(c)}" for c in configs])
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
    made = style.figure(style.WIDTH_IN + 1, 4.6 + 0.22 * len(curves))
    left, right = made.subplots(1, 2)
    most = max(p.devices for p in analysis.pairs)
    for i, (name, pairs) in enumerate(curves.items()):
        shift = 0.03 * most * (i - (len(curves) - 1) / 2) / max(len(curves) - 1, 1)
        ratio_points(left, pairs, lambda p: p.speedup, name, i, shift, joined=True)
        ratio_points(right, pairs, lambda p: p.efficiency, name, i, shift, joined=True)
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
    limit_ratios(left, [(p.devices, p.speedup) for p in analysis.pairs], most)
    limit_ratios(right, [(p.devices, p.efficiency) for p in analysis.pairs], 1.0)
    named = [axes.get_legend_handles_labels() for axes in (left, right)]
    entries = {label: handle for handles, labels in named
               for handle, label in zip(handles, labels, strict=True)}  # fmt: skip
    made.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=2,
                frameon=False, fontsize=9)  # fmt: skip
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
    limit = min(axes.get_xlim()[1], style.WIDEST * most)
    for row, config in enumerate(configs):
        figure = config.estimate("samples_per_s")
        if figure and figure.interval and figure.interval.high > limit:
            axes.plot([limit], [row], ">", color="black", ms=6, clip_on=False)
    axes.set_xlim(0, limit)


def limit_ratios(axes: Axes, points: Sequence[tuple[int, RatioEstimate]], ideal: float) -> None:
    """As :func:`_limit_intervals`, upwards; the ``ideal`` stays in sight."""
    limit = style.WIDEST * max(ideal, *(figure.value for _, figure in points))
    if axes.get_ylim()[1] <= limit:
        return
    for devices, figure in points:
        if figure.interval and figure.interval.high > limit:
            axes.plot([devices], [limit], "^", color="black", ms=6, clip_on=False)
    axes.set_ylim(0, limit)


def ratio_points(
    axes: Axes,
    pairs: Sequence[Pair],
    read: Callable[[Pair], RatioEstimate],
    name: str,
    index: int,
    shift: float,
    *,
    joined: bool = False,
) -> None:
    """A marker a pair at its number of devices, moved by ``shift``, with its interval.

    ``joined`` draws a line through them that begins at one device, where the ratio is 1.
    """
    ordered = sorted(pairs, key=lambda p: p.devices)
    ratios = [read(p) for p in ordered]
    low = [r.value - r.interval.low if r.interval else 0.0 for r in ratios]
    high = [r.interval.high - r.value if r.interval else 0.0 for r in ratios]
    x = [p.devices + shift for p in ordered]
    if joined:
        values = [r.value for r in ratios]
        axes.plot([1, *x], [1, *values], color=style.colour(index), lw=1, alpha=0.6)
    axes.errorbar(x, [r.value for r in ratios], yerr=[low, high], fmt=style.marker(index), ms=6,
                  capsize=3, color=style.colour(index), label=name)  # fmt: skip


def curve_name(pair: Pair) -> str:
    """The configuration without its number of devices."""
    return pair.multi.label.replace(f" x{pair.devices}", "", 1)
