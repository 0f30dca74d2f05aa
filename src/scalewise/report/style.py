"""How every plot looks: one palette, safe for the colour-blind, and no global state."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito (2008): distinguishable with every common colour vision deficiency.
PALETTE = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#555555", "#F0E442",
)  # fmt: skip
GREY = "#888888"
MARKERS = "osD^vP*X"
WIDTH_IN = 9.0
WIDEST = 1.6
"""Length of an axis in its largest figure: few wild runs have intervals that dwarf all others."""


def figure(width_in: float, height_in: float) -> Figure:
    """A figure drawn by Agg that lays itself out."""
    made = Figure(figsize=(width_in, height_in), dpi=150, layout="constrained")
    FigureCanvasAgg(made)
    return made


def colour(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def marker(index: int) -> str:
    # A ninth series repeats a colour, so the marker changes with it.
    return MARKERS[(index + index // len(PALETTE)) % len(MARKERS)]


def tidy(axes: Axes, grid: str = "x") -> None:
    """Light grid behind the data, no box."""
    axes.grid(axis=grid, color="#dddddd", linewidth=0.7)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def stacked_panels(
    width_in: float, rows: list[int], row_in: float = 0.36, frame_in: float = 1.0
) -> tuple[Figure, list[Axes]]:
    """One panel above the other, each as high as its number of rows needs."""
    heights = [frame_in + row_in * n for n in rows]
    made = figure(width_in, sum(heights) + 0.5)
    options: dict[str, Any] = {"height_ratios": heights, "squeeze": False}
    return made, list(made.subplots(len(rows), 1, **options)[:, 0])
