"""The lines that a person reads while a sweep runs."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from scalewise.records import PlannedCell, SweepFolder, SweepPlan
from scalewise.supervisor import Outcome
from scalewise.sweep import make_display
from scalewise.sweep.display import Display, Progress, Tally, duration, left_words, shortened


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


def test_a_reason_is_told_once_whatever_ended_in_between() -> None:
    said, why = io.StringIO(), Outcome("skipped", "too few devices")
    display = make_display(said)
    for outcome in (why, Outcome("done", ""), why):
        display.ended(cell(0, 0.1), outcome, None)
    assert said.getvalue().count(why.message) == 1


def test_no_columns_at_all_silence_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    said = io.StringIO()
    make_display(said).note("waiting")
    assert said.getvalue() == "waiting\n"


def test_one_cell_is_one_cell() -> None:
    assert str(Tally(1, done=1)) == "1/1 cell done"
    assert str(Tally(2, failed=1)) == "0/2 cells done, 1 failed"


def test_no_total_is_claimed_while_rounds_may_be_added() -> None:
    assert str(Tally(8, done=6, round=3)) == "6 cells done, round 3"
    assert left_words(30.0, more_may_come=True) == "at least 30.0 s left"
    assert "done" not in left_words(0.5, more_may_come=True)


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
        "1/2 cells done, about 42.0 s left",
        "1/2 cells done, nearly done",  # once: it says nothing again
    ]
    assert (duration(0.0), duration(0.06)) == ("under 0.1 s", "0.1 s")


LONG = "gpt2_tiny-fineweb_edu-heterogeneous8-r0-39b17f4d"
RUNNING = [
    Progress(LONG, 8, 84, 120, 1234.5, 30.0),
    Progress(LONG.replace("r0", "r1"), 8, 0, None, None),
]


def drawn(width: int, running: list[Progress], height: int = 24) -> list[str]:
    """What a terminal of that size is left with, line by line."""
    file = io.StringIO()
    display = Display(Console(file=file, force_terminal=True, width=width, height=height))
    display.tick(Tally(12, done=3, failed=1, already_done=2), running, 8130.0)
    before = file.tell()
    display.ended(cell(0, 0.1), Outcome("done", "", None, 1234.0), 2.0)
    display.close()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()[before:])
    return [line.rstrip() for line in plain.splitlines() if line.strip()]


@pytest.mark.parametrize("width", [50, 60, 80, 120])
def test_a_table_fits_a_terminal_of_any_width(width: int) -> None:
    said = drawn(width, RUNNING)
    assert max(map(len, said)) <= width
    rows = [line for line in said if line.startswith("gpt2")]
    assert [line.startswith(("gpt2", "done", "3/12 cells")) for line in said] == [True] * len(said)
    for each, step in zip(rows[:2], ("step 84/120", "starting"), strict=True):
        assert re.match(r"gpt2\S*7f4d ", each) and each.endswith(step)
        assert ("8 devices" in each) is (width > 60)


def test_a_terminal_of_few_lines_keeps_the_counts() -> None:
    said = drawn(80, RUNNING * 20, height=10)
    assert any(line.startswith("3/12 cells done (2 before), 1 failed, about 2 h") for line in said)
    assert "and 33 more running" in said


@pytest.mark.parametrize("columns", ["60", "80", "120", ""])
@pytest.mark.parametrize("running", [[], RUNNING[:1], RUNNING])
def test_a_line_in_a_pipe_is_never_wide(
    monkeypatch: pytest.MonkeyPatch, columns: str, running: list[Progress]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("scalewise.sweep.display._LINE_EVERY_S", 0.0)
    file = io.StringIO()
    make_display(file).tick(Tally(12, done=3), running, 30.0)
    (line,) = file.getvalue().splitlines()
    assert len(line) <= min(80, int(columns or 80))
    assert line.strip().startswith("3/12 cells done, about 30.0 s left")
    assert len(running) < 2 or line.endswith(", 2 running")


def test_both_ends_of_a_name_stay() -> None:
    assert shortened("short", 5) == "short"
    assert shortened("0123456789", 1) == "012..789"


def test_why_a_cell_failed_is_told_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    file, why = io.StringIO(), "rank 1: out of memory " * 9
    make_display(file).ended(cell(0, 0.1), Outcome("failed", why), 2.0)
    assert why in file.getvalue() and cell(0, 0.1).planned.name in file.getvalue()
