"""The lines that a person reads while a sweep runs."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scalewise.records import PlannedCell, SweepFolder, SweepPlan
from scalewise.supervisor import Outcome
from scalewise.sweep import make_display
from scalewise.sweep.display import Tally, duration


def cell(number: int, lr: float) -> Any:
    """All that a display asks of a cell."""
    name = f"mlp-single-r0-0000000{number}"
    planned = PlannedCell(f"id{number}", f"c{number}", name, (f"optimizer.lr={lr}",), 0, 1)
    return SimpleNamespace(planned=planned)


def test_cells_are_named_with_what_was_swept(tmp_path: Path) -> None:
    said, cells = io.StringIO(), (cell(0, 0.1), cell(1, 0.2))
    display = make_display(said, folder=tmp_path)
    display.started(cells[0], 1)
    plan = SweepPlan(1.0, ("train.py",), 0, tuple(cast(PlannedCell, c.planned) for c in cells))
    SweepFolder(tmp_path).save_plan(plan)
    display.started(cells[1], 2)
    display.ended(cells[1], Outcome("done", "", None, 1234.0), 2.0)
    assert said.getvalue().splitlines() == [
        "start    mlp-single-r0-00000000 on 1 device",
        "start    mlp-single-r0-00000001 (lr=0.2) on 2 devices",
        "done     mlp-single-r0-00000001 (lr=0.2) in 2.0 s, 1,234 samples/s",
    ]


def test_no_columns_at_all_silence_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    said = io.StringIO()
    make_display(said).note("waiting")
    assert said.getvalue() == "waiting\n"


def test_one_cell_is_one_cell() -> None:
    assert str(Tally(1, done=1)) == "1/1 cell, 1 done"
    assert str(Tally(2, failed=1)) == "1/2 cells, 0 done, 1 failed"


def test_no_figure_is_given_for_time_that_no_estimate_tells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("scalewise.sweep.display.time.monotonic", lambda: now)
    said = io.StringIO()
    display = make_display(said)
    for seconds_left in (42.0, 0.9, 0.0):
        now += 10.0
        display.tick(Tally(2, done=1), (), seconds_left)
    assert [line.strip() for line in said.getvalue().splitlines()] == [
        "1/2 cells, 1 done, about 42.0 s left",
        "1/2 cells, 1 done, nearly done",
        "1/2 cells, 1 done, nearly done",
    ]
    assert (duration(0.0), duration(0.06)) == ("under 0.1 s", "0.1 s")
