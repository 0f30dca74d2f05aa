"""``{dataset}_*.png``, and memory against quality for optimizers and pruning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from scalewise.analysis.figures import number
from scalewise.analysis.runs import Configuration
from scalewise.analysis.scaling import Pair
from scalewise.analysis.statistics import Estimate
from scalewise.analysis.summary import Analysis
from scalewise.report import style
from scalewise.report.plots_scaling import curve_name, limit_ratios, ratio_points
from scalewise.report.study.epochs import accuracy, mean_epoch_time_s
from scalewise.report.study.memory import memory_quality
from scalewise.report.study.selection import by_name, file_part

_GOOD_EFFICIENCY = 0.8
"""The published plots' line for "good"."""


def draw_all(analysis: Analysis, warmup_epochs: int) -> Iterator[tuple[str, Figure]]:
    """File name and figure, for everything that has something to show."""
    for dataset, configs in by_name(analysis, "dataset").items():
        pairs = [p for p in analysis.pairs if p.multi.name("dataset") == dataset]
        drawn = {
            "epoch_time_detailed": epoch_time(dataset, configs, warmup_epochs),
            "speedup_efficiency": speedup_efficiency(dataset, pairs),
            "throughput": throughput(dataset, configs),
            "accuracy": accuracy_curves(dataset, configs),
        }
        for name, figure in drawn.items():
            if figure is not None:
                yield f"{file_part(dataset)}_{name}.png", figure
        quality = memory_quality(dataset, configs)
        if quality is not None:
            yield f"{file_part(dataset)}_memory_quality.png", quality


def epoch_time(dataset: str, configs: Sequence[Configuration], warmup_epochs: int) -> Figure | None:
    """Seconds an epoch, a bar a configuration, with 95 % intervals over runs."""
    rows = [(c, e) for c in configs if (e := mean_epoch_time_s(c, warmup_epochs)) is not None]
    if not rows:
        return None
    left_out = f", the first {warmup_epochs} left out" if warmup_epochs else ""
    return _bars(f"{dataset}: time of an epoch{left_out}", "s an epoch", rows)


def throughput(dataset: str, configs: Sequence[Configuration]) -> Figure | None:
    """Global samples/s, a bar a configuration, with 95 % intervals over runs."""
    rows = [(c, e) for c in configs if (e := c.estimate("samples_per_s")) is not None]
    return _bars(f"{dataset}: throughput", "samples/s of all devices", rows) if rows else None


def _bars(title: str, unit: str, rows: Sequence[tuple[Configuration, Estimate]]) -> Figure:
    made = style.figure(9, 1.4 + 0.42 * len(rows))
    axes = made.subplots()
    limit = style.WIDEST * max(figure.value for _, figure in rows)
    for row, (config, figure) in enumerate(rows):
        colour = style.colour(0 if config.devices == 1 else 1)
        axes.barh(row, figure.value, height=0.65, color=colour, alpha=0.85)
        end = figure.value
        if figure.interval is not None:
            low, high = figure.interval.low, min(figure.interval.high, limit)
            axes.plot([low, high], [row, row], color="black", lw=1.6)
            if figure.interval.high > limit:
                axes.plot([limit], [row], ">", color="black", ms=6)
            end = max(end, high)
        axes.text(end, row, f"  {number(figure.value)}", va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [config.label for config, _ in rows])
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(f"{unit} (bar: mean over runs, line: 95 % interval)")
    axes.set_xlim(0, axes.get_xlim()[1] * 1.14)
    style.tidy(axes)
    return made


def speedup_efficiency(dataset: str, pairs: Sequence[Pair]) -> Figure | None:
    """Speedup and efficiency over devices, with lines for ideal and good."""
    if not pairs:
        return None
    curves: dict[str, list[Pair]] = {}
    for pair in pairs:
        curves.setdefault(curve_name(pair), []).append(pair)
    made = style.figure(10, 4.6 + 0.2 * len(curves))
    left, right = made.subplots(1, 2)
    most = max(p.devices for p in pairs)
    for i, (name, members) in enumerate(curves.items()):
        shift = 0.03 * most * (i - (len(curves) - 1) / 2) / max(len(curves) - 1, 1)
        ratio_points(left, members, lambda p: p.speedup, name, i, shift)
        ratio_points(right, members, lambda p: p.efficiency, name, i, shift)
    ends = [1, most]
    left.plot(ends, ends, "--", color=style.GREY, label="ideal")
    left.plot(ends, [e * _GOOD_EFFICIENCY if e > 1 else 1 for e in ends], ":", color=style.GREY,
              label=f"good: efficiency of {_GOOD_EFFICIENCY:g}")  # fmt: skip
    right.axhline(1, ls="--", color=style.GREY)
    right.axhline(_GOOD_EFFICIENCY, ls=":", color=style.GREY)
    for axes, title in ((left, "speedup over one device"), (right, "efficiency")):
        axes.set_title(f"{dataset}: {title}", fontsize=11)
        axes.set_xlabel("devices")
        axes.set_xticks(sorted({1, *(p.devices for p in pairs)}))
        axes.set_xlim(1 - 0.06 * most, most * 1.08)
        axes.set_ylim(0, max(axes.get_ylim()[1], 1.15))
        style.tidy(axes, "both")
    limit_ratios(left, [(p.devices, p.speedup) for p in pairs], most)
    limit_ratios(right, [(p.devices, p.efficiency) for p in pairs], 1.0)
    handles, labels = left.get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return made


def accuracy_curves(dataset: str, configs: Sequence[Configuration]) -> Figure | None:
    """Accuracy on the validation set over samples fed, a line a run."""
    curves = {c.label: [a for r in c.runs if (a := accuracy(r)) is not None] for c in configs}
    curves = {label: found for label, found in curves.items() if found}
    if not curves:
        return None
    made = style.figure(8, 4.6)
    axes = made.subplots()
    for i, (label, found) in enumerate(curves.items()):
        for j, (samples, percent) in enumerate(found):
            axes.plot(samples, percent, color=style.colour(i), marker=style.marker(i), ms=4, lw=1.3,
                      alpha=0.9 if len(found) == 1 else 0.6,
                      label=label if j == 0 else None)  # fmt: skip
    axes.set(xlabel="samples fed by all devices", ylabel="validation accuracy (%)")
    axes.set_title(f"{dataset}: accuracy", loc="left", fontsize=11)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.legend(frameon=False, fontsize=8)
    style.tidy(axes, "both")
    return made
