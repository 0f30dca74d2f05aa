"""How every plot looks, and the one way in which plots are written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from scalewise.analysis import Configuration, Estimate, grouped, number
from scalewise.report.sections import printable

# Okabe and Ito (2008): distinguishable with every common colour vision deficiency.
PALETTE = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#555555", "#F0E442",
)  # fmt: skip
GREY = "#888888"
WIDTH_IN = 9.0
WIDEST = 1.6
"""Length of an axis in its largest figure: few wild runs have intervals that dwarf all others."""
BEYOND = "interval reaches beyond the scale"
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


def beyond(axes: Axes, x: float, y: float, direction: str, colour: str) -> None:
    """A triangle at the end of the scale, in the colour and place of its series."""
    told = axes.get_legend_handles_labels()[1]
    label = None if BEYOND in told else BEYOND
    axes.plot([x], [y], direction, color=colour, ms=7, clip_on=False, ls="", zorder=5, label=label)


def drawn(text: str, longest: int = _LONGEST) -> str:
    """A text as pictures show it: without control characters, a long one without its middle."""
    lines = [printable(line) for line in text.split("\n")]
    return "\n".join(
        line if len(line) <= longest else f"{line[: longest // 2]}…{line[-longest // 2 :]}"
        for line in lines
    )


def swept_values(labels: Sequence[str]) -> list[str]:
    """Long labels without the settings that most of them share, where they then still differ."""
    if max(map(len, labels), default=0) <= _LONGEST_NAME:
        return list(labels)
    often = Counter(word for label in labels for word in set(label.split()))
    short = [
        drawn(
            " ".join(w for w in label.split() if "=" not in w or 2 * often[w] <= len(labels)),
            _LONGEST_NAME,
        )
        for label in labels
    ]
    return short if len(set(short)) == len(labels) else list(labels)


def tidy(axes: Axes, grid: str = "x") -> None:
    """Light grid behind the data, no box."""
    axes.grid(axis=grid, color="#dddddd", linewidth=0.7)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def group_thousands(axes: Axes, *names: str) -> None:
    """Numbers on the axes ``x`` or ``y`` as 12,800, with all the digits that tell them apart."""
    for name in names:
        axis = axes.xaxis if name == "x" else axes.yaxis
        axis.set_major_formatter(lambda v, _: f"{v:,.10g}")


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


def stacked_panels(rows: Sequence[int]) -> tuple[Figure, list[Axes]]:
    """One panel above the other, each as high as its number of rows needs."""
    heights = [1.0 + 0.36 * n for n in rows]
    made = figure(WIDTH_IN, sum(heights) + 0.5)
    return made, grid_of_panels(made, len(rows), 1, len(rows), height_ratios=heights)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    short = [drawn(name, _LONGEST_NAME) for name in names]
    if len(set(short)) < len(set(names)):
        short = [drawn(name, len(name)) for name in names]
    axes.set_yticks(range(len(names)), short)
    axes.set_ylim(len(names) - 0.5, -0.5)


def by_workload(configs: Sequence[Configuration]) -> dict[str, list[Configuration]]:
    """Configurations by model and dataset: a panel each."""
    return grouped(configs, lambda c: " on ".join(filter(None, c.workload))
                   if all(c.workload) else c.label)  # fmt: skip


def short_label(config: Configuration) -> str:
    return config.label.removeprefix(f"{config.name('model')} ")


Bar = tuple[Configuration, Estimate, Sequence[float]]
"""A configuration with its mean and the values of its runs."""


def interval_bars(axes: Axes, title: str, bars: Sequence[Bar]) -> None:
    """A bar a mean, a line its 95 % interval, and a dot a run.

    Few wild runs have intervals that dwarf every bar: those leave the axes, with an arrow.
    """
    for row, (config, mean, values) in enumerate(bars):
        single = config.devices == 1
        axes.barh(row, mean.value, height=0.65, color=colour(0 if single else 1), alpha=0.85)
        if mean.interval is not None:
            axes.plot([mean.interval.low, mean.interval.high], [row, row], color="black", lw=1.6)
        axes.plot(values, [row] * len(values), "o", ms=3, mfc="white", mec="black", mew=0.8)
    most = max(max(mean.value, *values) for _, mean, values in bars)
    limit = min(axes.get_xlim()[1], WIDEST * most)
    for row, (config, mean, _) in enumerate(bars):
        if mean.interval and mean.interval.high > limit:
            beyond(axes, limit, row, ">", colour(0 if config.devices == 1 else 1))
    axes.set_xlim(0, limit)
    # Before the bar: at the end of an interval the mean would be read as that end's value.
    name_rows(axes, [f"{short_label(c)}:  {number(mean.value)}" for c, mean, _ in bars])
    axes.set_title(title, loc="left", fontsize=11)
    group_thousands(axes, "x")
    tidy(axes)
