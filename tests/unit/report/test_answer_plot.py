"""answer.png: every comparison, every run, and what leaves the scale."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fakes.recorded import DDP, Spec, analysed, repeats
from scalewise.report import plot_style, plots
from scalewise.report.plots import answer_plot, report_plots, speedup_efficiency


def test_it_has_the_verdict_every_run_and_the_cost(tmp_path: Path) -> None:
    found = analysed(tmp_path, *repeats(Spec(), [1, 1.02, 0.98]), *repeats(DDP, [1, 0.98, 1.02]))
    figure = answer_plot(found)
    assert figure is not None
    (pair,) = found.pairs
    assert pair.verdict in figure.get_suptitle()
    speedups, costs = figure.axes
    (runs,) = [one for one in speedups.get_lines() if one.get_marker() == "o"]
    assert np.exp(np.log(runs.get_xdata()).mean()) == pytest.approx(pair.speedup.value)
    assert len(runs.get_xdata()) == 3
    assert [one.get_xdata()[0] for one in costs.get_lines() if one.get_marker() == "D"] == [
        pytest.approx(pair.devices / pair.speedup.value)
    ]
    # From left to right: does not pay below what is wanted, pays from there on.
    assert sorted(bar.get_x() for bar in speedups.patches) == [0, 1.1]


def test_a_triangle_has_the_colour_and_place_of_its_series(tmp_path: Path) -> None:
    wild = replace(DDP, model="wild")
    found = analysed(
        tmp_path,
        *repeats(Spec(), [1, 1.01, 0.99]), *repeats(DDP, [1, 1.01, 0.99]),
        *repeats(Spec(model="wild"), [1, 1.01, 0.99]), *repeats(wild, [1, 2.5, 0.6]),
    )  # fmt: skip
    for figure in (answer_plot(found), speedup_efficiency(found.pairs, "", 0.5, "")):
        assert figure is not None
        assert plot_style.BEYOND in [text.get_text() for text in figure.legends[0].get_texts()]
    (triangle,) = [one for one in figure.axes[0].get_lines() if one.get_marker() == "^"]
    assert triangle.get_color() == plot_style.colour(1)
    (marks,) = [one for one in figure.axes[0].get_lines() if one.get_marker() == "s"]
    assert triangle.get_xdata()[0] == marks.get_xdata()[0]


def test_no_comparison_is_no_picture(tmp_path: Path) -> None:
    found = analysed(tmp_path, Spec())
    assert answer_plot(found) is None
    assert [name for name, draw in report_plots(found).items() if draw()] == [
        "throughput.png", "step_anatomy.png",
    ]  # fmt: skip


def test_a_picture_of_many_says_that_it_shows_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "_MOST_DRAWN", 2)
    other = Spec(model="other")
    found = analysed(tmp_path, *repeats(Spec(), [1, 1.01]), *repeats(DDP, [1, 1.01]), other)
    draws = report_plots(found)
    figure = draws["step_anatomy.png"]()
    assert figure is not None
    assert figure.get_suptitle().startswith("2 of 3 configurations")
    assert len(figure.axes) == 1
    whole = draws["answer.png"]()
    assert whole is not None
    assert "configurations" not in whole.get_suptitle()
