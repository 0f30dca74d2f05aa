"""The answer in one picture: each comparison in the bands of its verdict, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from scalewise.analysis import (
    Analysis,
    Pair,
    RatioEstimate,
    bounding,
    factor,
)
from scalewise.report import plot_style

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
    plot_style.name_rows(speedups, [_name(pair) for pair in shown])
    for label, pair in zip(speedups.get_yticklabels(), shown, strict=True):
        label.set_color(_INKS.get(pair.verdict, _OPEN_INK))
    for axes in (speedups, costs):
        plot_style.tidy(axes)
    made.suptitle(_title(analysis.pairs), x=0.01, ha="left", fontsize=13, fontweight="bold")
    plot_style.legend_below(made, _entries(speedups, costs), 4)
    return made


def _name(pair: Pair) -> str:
    return f"{plot_style.drawn(pair.multi.label, _LONGEST_NAME)}\n{pair.verdict}"


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
    """The mean, its interval and its number."""
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
        bounds = f" ({factor(interval.low)} to {factor(interval.high)})" if interval else ""
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
