"""The answer, throughput, speedup and parts of a step: each a figure, or None without any.

And how every plot looks, and the one way in which plots are written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

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
from scalewise.report.sections import printable

# Okabe and Ito (2008): distinguishable with every common colour vision deficiency.
PALETTE = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#555555", "#F0E442",
)  # fmt: skip
GREY = "#888888"
WIDTH_IN = 9.0
WIDEST = 1.6
"""Length of an axis in its largest figure: intervals of few wild runs, which dwarf all others, run
out of the picture."""
_LONGEST = 110
_LONGEST_NAME = 60
"""Letters of a line of text, and of a row's name."""
_MARKERS = "osD^vP*X"
Draw = Callable[[], Figure | None]


def write_plots(draws: Mapping[str, Draw], folder: Path) -> tuple[list[str], list[str]]:
    """Write the plots that have something to show; returns their names, and what failed.

    An earlier plot of the same name is removed, since it would show what is no longer there. A
    picture that fails, for whatever reason, never ends a report: its figures are in the tables.
    """
    written, failed = [], []
    # A `$` in a label is no mathematics.
    with mpl.rc_context({"text.parse_math": False}):
        for name, draw in draws.items():
            path = folder / name
            try:
                made = draw()
                if made is None:
                    path.unlink(missing_ok=True)
                    continue
                for text in made.findobj(Text):
                    text.set_text(drawn(text.get_text()))
                with TemporaryDirectory(prefix=".", dir=folder) as beside:
                    made.savefig(Path(beside) / name)
                    (Path(beside) / name).replace(path)
                written.append(name)
            except Exception as error:
                path.unlink(missing_ok=True)
                failed.append(f"{name} was not written: {type(error).__name__}: {error}")
    return written, failed


def figure(width_in: float, height_in: float) -> Figure:
    made = Figure(figsize=(width_in, height_in), dpi=150, layout="constrained")
    FigureCanvasAgg(made)
    return made


def colour(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def marker(index: int) -> str:
    """A marker; a ninth series repeats a colour, so the marker changes with it."""
    return _MARKERS[(index + index // len(PALETTE)) % len(_MARKERS)]


def drawn(text: str, longest: int = _LONGEST) -> str:
    """A text as pictures show it: without control characters, a long one without its middle."""
    return "\n".join(
        line if len(line) <= longest else f"{line[: longest // 2]}…{line[-longest // 2 :]}"
        for line in map(printable, text.split("\n"))
    )


def tidy(axes: Axes, grid: str = "x") -> None:
    """Light grid behind the data, no box."""
    axes.grid(axis=grid, color="#dddddd", linewidth=0.7)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def group_thousands(axes: Axes, *names: str) -> None:
    """Numbers on the axes ``x`` or ``y`` as 12,800, with all the digits that tell them apart."""
    for name in names:
        (axes.xaxis if name == "x" else axes.yaxis).set_major_formatter(lambda v, _: f"{v:,.10g}")


def legend_below(made: Figure, entries: Mapping[str, Artist], columns: int) -> None:
    """One legend for all panels; nothing where there are no entries."""
    if entries:
        made.legend(list(entries.values()), list(entries), loc="outside lower center",
                    ncols=columns, frameon=False, fontsize=8)  # fmt: skip


def entries_of(*panels: Axes) -> dict[str, Artist]:
    """What the panels' legends would show, each name once."""
    named = [axes.get_legend_handles_labels() for axes in panels]
    return {label: handle for handles, labels in named
            for handle, label in zip(handles, labels, strict=True)}  # fmt: skip


def grid_of_panels(made: Figure, rows: int, columns: int, count: int, **more: Any) -> list[Axes]:
    """The first ``count`` panels of a grid, without the others."""
    panels = list(made.subplots(rows, columns, squeeze=False, **more).ravel())
    for axes in panels[count:]:
        axes.remove()
    return panels[:count]


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    short = [drawn(name, _LONGEST_NAME) for name in names]
    if len(set(short)) < len(set(names)):
        short = [drawn(name, len(name)) for name in names]
    axes.set_yticks(range(len(names)), short)
    axes.set_ylim(len(names) - 0.5, -0.5)


def by_workload(
    configs: Sequence[Configuration],
    draw: Callable[[Axes, Sequence[Configuration]], None],
    below: str,
) -> Figure | None:
    """A panel for each model and dataset, one above the other, as high as its rows need."""
    groups = grouped(configs, lambda c: " on ".join(filter(None, c.workload))
                     if all(c.workload) else c.label)  # fmt: skip
    if not groups:
        return None
    heights = [1.0 + 0.36 * len(members) for members in groups.values()]
    made = figure(WIDTH_IN, sum(heights) + 0.5)
    panels = grid_of_panels(made, len(groups), 1, len(groups), height_ratios=heights)
    for axes, (workload, members) in zip(panels, groups.items(), strict=True):
        draw(axes, members)
        axes.set_title(workload, loc="left", fontsize=11)
        tidy(axes)
    panels[-1].set_xlabel(below)
    return made


def short_label(config: Configuration) -> str:
    return config.label.removeprefix(f"{config.name('model')} ")


def _rate_bars(axes: Axes, configs: Sequence[Configuration]) -> None:
    """A bar a mean, a line its 95 % interval, and a dot a run."""
    bars = [(c, mean, c.values("global_samples_per_s")) for c in configs
            if (mean := c.estimate("global_samples_per_s"))]  # fmt: skip
    for row, (config, mean, values) in enumerate(bars):
        single = config.devices == 1
        axes.barh(row, mean.value, height=0.65, color=colour(0 if single else 1), alpha=0.85)
        if mean.interval is not None:
            axes.plot([mean.interval.low, mean.interval.high], [row, row], color="black", lw=1.6)
        axes.plot(values, [row] * len(values), "o", ms=3, mfc="white", mec="black", mew=0.8)
    most = max(max(mean.value, *values) for _, mean, values in bars)
    axes.set_xlim(0, min(axes.get_xlim()[1], WIDEST * most))
    # Before the bar: at the end of an interval the mean would be read as that end's value.
    name_rows(axes, [f"{short_label(c)}:  {number(mean.value)}" for c, mean, _ in bars])
    group_thousands(axes, "x")


_MOST_DRAWN: Final = 40
"""Configurations; of more, report.html has pictures to filter."""


def report_plots(analysis: Analysis) -> dict[str, Draw]:
    """File name to what draws it: what report.md shows. report.html draws more, of every run."""
    least = f"efficiency of {MIN_EFFICIENCY:g}: the least that pays"
    # More are not to be told apart in a picture.
    few = len(analysis.measured) <= _MOST_DRAWN
    measured, pairs = (analysis.measured, analysis.pairs) if few else ((), ())
    return {
        "answer.png": lambda: answer_plot(analysis),
        "throughput.png": lambda: None if pairs else throughput(measured),
        "speedup_efficiency.png": partial(speedup_efficiency, pairs, "", MIN_EFFICIENCY, least),
        "step_anatomy.png": lambda: step_anatomy(measured),
    }


def throughput(configs: Sequence[Configuration]) -> Figure | None:
    """Global samples/s with 95 % intervals over runs; every run is a dot."""
    timed = [config for config in configs if config.values("global_samples_per_s")]
    what = "samples/s of all devices (bar and number: mean, line: 95 % interval, dots: runs)"
    return by_workload(timed, _rate_bars, what)


def speedup_efficiency(
    pairs: Sequence[Pair], title: str, threshold: float, threshold_words: str
) -> Figure | None:
    """Speedup and efficiency over devices, with intervals, ideal and threshold lines."""
    if not pairs:
        return None
    curves = grouped(pairs, lambda p: p.multi.label.replace(f" x{p.devices}", "", 1))
    made = figure(WIDTH_IN + 1, 4.6 + 0.22 * len(curves))
    most = max(p.devices for p in pairs)
    titles = (("speedup", "speedup over one device", most), ("efficiency", "efficiency", 1.0))
    panels = grid_of_panels(made, 1, 2, 2)
    for axes, (ratio_of, words, ideal) in zip(panels, titles, strict=True):
        for i, (name, members) in enumerate(curves.items()):
            shift = 0.03 * most * (i - (len(curves) - 1) / 2) / max(len(curves) - 1, 1)
            ordered = sorted(members, key=lambda p: p.devices)
            points = [(p.devices + shift, getattr(p, ratio_of)) for p in ordered]
            _ratio_points(axes, points, name, i)
        axes.set(xlabel="devices", title=f"{title}{words}")
        axes.set_xticks(sorted({1, *(p.devices for p in pairs)}))
        axes.set_xlim(1 - 0.06 * most, most * 1.08)
        largest = max(ideal, *(getattr(p, ratio_of).value for p in pairs))
        axes.set_ylim(0, min(max(axes.get_ylim()[1], 1.15), WIDEST * largest))
        tidy(axes, "both")
    speedup, efficiency = panels
    speedup.plot([1, most], [1, most], "--", color=GREY, label="ideal")
    efficiency.axhline(1, ls="--", color=GREY)
    efficiency.axhline(threshold, ls=":", color=GREY, label=threshold_words)
    legend_below(made, entries_of(*panels), 2)
    return made


def _ratio_points(
    axes: Axes, points: Sequence[tuple[float, RatioEstimate]], name: str, index: int
) -> None:
    """A marker a pair with its interval, and a line through them from 1 on one device."""
    x, ratios = [at for at, _ in points], [ratio for _, ratio in points]
    values = [r.value for r in ratios]
    low = [r.value - r.interval.low if r.interval else 0.0 for r in ratios]
    high = [r.interval.high - r.value if r.interval else 0.0 for r in ratios]
    ink = colour(index)
    axes.plot([1, *x], [1, *values], color=ink, lw=1, alpha=0.6)
    axes.errorbar(x, values, yerr=[low, high], fmt=marker(index), ms=6, capsize=3,
                  color=ink, label=name)  # fmt: skip


def step_anatomy(measured: Sequence[Configuration]) -> Figure | None:
    anatomies = {c.config_id: a for c in measured if (a := c.anatomy)}
    shown: dict[str, Artist] = {}

    def draw(axes: Axes, configs: Sequence[Configuration]) -> None:
        for row, config in enumerate(configs):
            anatomy, left = anatomies[config.config_id], 0.0
            for i, phase in enumerate(PHASES):
                if (ms := anatomy.phases_ms.get(phase)) is None:
                    continue
                word = config.phase_word(phase)
                idle = word == IDLE
                hatch = "///" if phase == "exposed_comm" else "..." if idle else None
                bar = axes.barh(row, ms, left=left, color=GREY if idle else colour(i), height=0.7,
                                hatch=hatch, edgecolor="white", linewidth=0.5)  # fmt: skip
                shown.setdefault(word, bar[0])
                left += ms
            step = f"  {number(anatomy.step_ms)} ms ({anatomy.timeline})"
            axes.text(left, row, step, va="center", fontsize=8)
        name_rows(axes, [short_label(c) for c in configs])
        axes.set_xlim(0, axes.get_xlim()[1] * 1.2)

    timed = [config for config in measured if config.config_id in anatomies]
    made = by_workload(timed, draw, "mean ms a step, over runs and ranks (device or host clock)")
    if made is not None:
        legend_below(made, shown, 4)
    return made


_MOST_ROWS: Final = 16
_LONGEST_ANSWER: Final = 36
_BANDS: Final = {"does not pay": "#f6d0b8", "pays": "#bfe6d8"}
_INKS: Final = {"pays": "#00664d", "does not pay": "#b3400a", "invalid": "#b3400a"}
_OPEN_INK: Final = "#8a6100"


def answer_plot(analysis: Analysis) -> Figure | None:
    """A row a comparison; None without any. Left: speedup, a dot a run. Right: cost of a sample."""
    shown = analysis.pairs[:_MOST_ROWS]
    if not shown:
        return None
    made = figure(10.5, 1.9 + 0.62 * len(shown))
    speedups, costs = grid_of_panels(made, 1, 2, 2, sharey=True, width_ratios=(3, 2))
    of_cost = [analysis.cost_ratio(pair) for pair in shown]
    least = [1.15 * pair.judgement.wanted for pair in shown]
    # The ideal stands on the scale where it is near.
    least += [p.devices for p in shown if p.devices < 1.6 * p.speedup.value]
    limit = _limit([pair.speedup for pair in shown], least)
    for row, pair in enumerate(shown):
        wanted = pair.judgement.wanted
        for verdict, low, high in (("does not pay", 0.0, wanted), ("pays", wanted, limit)):
            speedups.barh(row, high - low, left=low, height=0.86, color=_BANDS[verdict], zorder=0)
        if pair.devices < limit:
            speedups.plot([pair.devices] * 2, [row - 0.42, row + 0.42], "--", color="black",
                          lw=1.2, label="ideal")  # fmt: skip
        runs = pair.run_speedups
        speedups.plot(runs, [row + 0.22] * len(runs), "o", ms=4.5, mfc="none", clip_on=False,
                      mec=colour(0), mew=1.1)  # fmt: skip
        _figure(speedups, row, pair.speedup)
    speedups.set_xlim(0, limit)
    speedups.set_title("speedup over one device", fontsize=10, loc="left")
    for row, found in enumerate(of_cost):
        if found is not None:
            _figure(costs, row, found)
    costs.axvline(1, color=GREY, lw=1)
    costs.set_xlim(0, _limit([one for one in of_cost if one], [1.3]))
    costs.set_title("cost of a sample over one device", fontsize=10, loc="left")
    names = [drawn(pair.multi.label, _LONGEST_ANSWER) for pair in shown]
    name_rows(speedups, [*map("{}\n{}".format, names, [pair.verdict for pair in shown])])
    for label, pair in zip(speedups.get_yticklabels(), shown, strict=True):
        label.set_color(_INKS.get(pair.verdict, _OPEN_INK))
    for axes in (speedups, costs):
        tidy(axes)
    made.suptitle(_title(analysis.pairs), x=0.01, ha="left", fontsize=13, fontweight="bold")
    legend_below(made, _entries(speedups, costs), 4)
    return made


def _limit(figures: Sequence[RatioEstimate], least: Sequence[float]) -> float:
    """End of an axis that holds every figure, and every interval that is not far beyond them."""
    most = max([*least, *(one.value for one in figures)])
    ends = [found.high for one in figures if (found := bounding(one))]
    return 1.06 * max(most, min(max(ends, default=0.0), WIDEST * most))


def _figure(axes: Axes, row: int, found: RatioEstimate) -> None:
    ink, at = colour(0), row - 0.08
    interval = bounding(found)
    if interval is not None:
        axes.plot([interval.low, interval.high], [at, at], color=ink, lw=2)
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
        return f"{drawn(pair.multi.label, 2 * _LONGEST_ANSWER)}: {verdict}, {speedup}x{bounds}"
    counts = Counter(pair.verdict for pair in pairs)
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    shown = f"; the first {_MOST_ROWS} are shown" if len(pairs) > _MOST_ROWS else ""
    return f"{len(pairs)} comparisons: {told}{shown}"


def _entries(*panels: Axes) -> dict[str, Artist]:
    ink = colour(0)
    return {
        **{f"band: {name}": Patch(color=band) for name, band in _BANDS.items()},
        "a run": Line2D([], [], ls="", marker="o", mfc="none", color=ink),
        "mean and 95 % interval": Line2D([], [], marker="D", color=ink),
        **entries_of(*panels),
    }
