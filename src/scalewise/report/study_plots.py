"""``{dataset}_*.png`` of a study, and memory against quality for optimizers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from scalewise.analysis import (
    Analysis,
    Configuration,
    Estimate,
    Run,
    epochs_after,
    equal_samples,
    estimate_mean,
    grouped,
)
from scalewise.report import plot_style
from scalewise.report.memory_plots import memory_plots
from scalewise.report.plot_style import Draw
from scalewise.report.plots import speedup_efficiency, throughput

_LONGEST_PART = 150
"""Bytes of a name in a file's name; a letter has up to four."""
_GOOD_EFFICIENCY = 0.8
"""The published plots' line for "good"."""
_MOST_CURVES = 12
"""Configurations of a plot."""
Curve = tuple[Sequence[int], Sequence[float]]
"""Of a run: epochs or samples, and the values there."""


def study_plots(analysis: Analysis, warmup_epochs: int) -> dict[str, Draw]:
    """File name to what draws it, for every data set."""
    draws = memory_plots(analysis)
    good = f"good: efficiency of {_GOOD_EFFICIENCY:g}"
    for dataset, configs in by_name(analysis, "dataset").items():
        name = file_part(dataset)
        pairs = [p for p in analysis.pairs if p.multi.name("dataset") == dataset]
        title = f"{dataset}: "
        draws |= {
            f"{name}_epoch_time_detailed.png": partial(epoch_time, dataset, configs, warmup_epochs),
            f"{name}_speedup_efficiency.png": partial(
                speedup_efficiency, pairs, title, _GOOD_EFFICIENCY, good
            ),
            f"{name}_throughput.png": partial(throughput, configs),
            f"{name}_accuracy.png": partial(accuracy_curves, dataset, configs),
            f"{name}_memory_quality.png": partial(memory_quality, dataset, configs),
        }
    return draws


def by_name(analysis: Analysis, group: str) -> dict[str, list[Configuration]]:
    """Measured configurations by the name of their model or data set."""
    return grouped(analysis.measured, lambda config: config.name(group) or "unnamed")


def file_part(name: str) -> str:
    """A name as a part of a file's name."""
    part = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
    return part if len(part.encode()) <= _LONGEST_PART else f"{part[: _LONGEST_PART // 6]}_{digest}"


def epoch_time(dataset: str, configs: Sequence[Configuration], warmup_epochs: int) -> Figure | None:
    """Seconds of each epoch, a line a run; the first ``warmup_epochs`` are left out."""
    curves: list[tuple[str, list[Curve]]] = []
    for config in configs:
        times = [epochs_after(run.cell, warmup_epochs) for run in config.runs]
        found: list[Curve] = [
            ([epoch for epoch, _ in each], [seconds for _, seconds in each])
            for each in times
            if each
        ]
        if found:
            curves.append((config.label, found))
    if not curves:
        return None
    left_out = f", the first {warmup_epochs} left out" if warmup_epochs else ""
    made = plot_style.figure(8, 4.6)
    axes = made.subplots()
    title = f"{dataset}: time of each epoch{left_out}"
    _draw_curves(axes, title, curves, "s an epoch", "epoch, from 0")
    axes.set_ylim(0)
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    return made


def _draw_curves(
    axes: Axes,
    title: str,
    curves: Sequence[tuple[str, Sequence[Curve]]],
    what: str,
    over: str = "samples fed by all devices",
) -> None:
    """Curves over samples fed or ``over``: a colour a configuration, a line a run; of the first."""
    if len(curves) > _MOST_CURVES:
        title += f" (the first {_MOST_CURVES} of {len(curves)})"
        curves = curves[:_MOST_CURVES]
    labels = plot_style.swept_values([label for label, _ in curves])
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


def accuracy_curves(dataset: str, configs: Sequence[Configuration]) -> Figure | None:
    """Accuracy on the validation set over samples fed, a line a run."""
    curves = [
        (config.label, found)
        for config in configs
        if (found := [curve for run in config.runs if (curve := _accuracy(run))])
    ]
    if not curves:
        return None
    made = plot_style.figure(8, 4.6)
    _draw_curves(made.subplots(), f"{dataset}: accuracy", curves, "validation accuracy (%)")
    return made


def _accuracy(run: Run) -> Curve | None:
    """Samples fed and accuracy in percent at each validation; None where none was scored."""
    rows = run.cell.metrics.get(0, ())
    points = [(r.samples, v) for r in rows if (v := r.values.get("val_accuracy")) is not None]
    if not points:
        return None
    return [samples for samples, _ in points], [100 * value for _, value in points]


@dataclass(frozen=True)
class Point:
    """One configuration's memory and quality."""

    label: str
    state_mib: float
    """Optimizer state of one rank: the largest over ranks, mean over runs."""
    loss: Estimate


def memory_points(configs: Sequence[Configuration]) -> tuple[list[Point], str, int] | None:
    """Every configuration whose memory is known, with its loss at the same number of samples.

    Returns the points, the name of the loss and the samples; None where fewer than two optimizers
    can be compared, or their runs do not share a loss.
    """
    usable = [
        (c, state)
        for c in configs
        if (state := c.estimate("optimizer_memory_mib")) and any(r.loss for r in c.runs)
    ]
    kinds = {c.name("optimizer") for c, _ in usable}
    curves = [run.loss for c, _ in usable for run in c.runs if run.loss is not None]
    if len(kinds) < 2 or len({curve.name for curve in curves}) != 1:
        return None
    samples = equal_samples(curves)
    found = []
    for config, state in usable:
        losses = [v for r in config.runs if r.loss and (v := r.loss.at(samples)) is not None]
        if losses:
            found.append(Point(config.label, state.value, estimate_mean(losses)))
    return found, curves[0].name, samples


def memory_quality(dataset: str, configs: Sequence[Configuration]) -> Figure | None:
    """A dot a configuration: memory to the right, loss upwards; below and left is better."""
    compared = memory_points(configs)
    if compared is None:
        return None
    found, loss, samples = compared
    made = plot_style.figure(9, 5.2)
    axes = made.subplots()
    for i, point in enumerate(found):
        interval, value = point.loss.interval, point.loss.value
        spread = [[value - interval.low], [interval.high - value]] if interval else None
        axes.errorbar(point.state_mib, value, yerr=spread, fmt=plot_style.marker(i), ms=7,
                      capsize=3, color=plot_style.colour(i), label=point.label)  # fmt: skip
    axes.set_xlim(0, axes.get_xlim()[1] * 1.05)
    axes.set_xlabel("optimizer state of one rank (MiB)")
    axes.set_ylabel(f"{loss} at {samples:,} samples")
    axes.set_title(f"{dataset}: memory against quality", loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    plot_style.tidy(axes, "both")
    return made
