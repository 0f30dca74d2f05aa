"""The lines that a person reads while a sweep runs."""

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from scalewise.records import Ending, State
from scalewise.sweep import make_display, status_view
from scalewise.sweep.status import CellStatus, Durations, SweepStatus
from scalewise.sweep.status_view import Display, _readings, _short, counts, duration, left_words

LONG = "gpt2_tiny-fineweb_edu-heterogeneous8-r0-39b17f4d"


def cell(state: State = "waiting", name: str = LONG, step: int | None = None) -> CellStatus:
    done = CellStatus(name, name, "c", Ending(state), 8)
    if step is None:
        return done
    return replace(done, step=step, total_steps=120, global_samples_per_s=1234.5, seconds_left=30.0)


RUNNING = [cell("running", step=84), cell("running", LONG.replace("r0", "r1"), 0)]


def sweep(
    running: Sequence[CellStatus] = (), left_s: float | None = None, round: int | None = None
) -> SweepStatus:
    """Of twelve cells three are done and one has failed."""
    others = [cell("done")] * 3 + [cell("failed")] + [cell()] * (8 - len(running))
    return SweepStatus("f", 0.0, "packed", (*others, *running), left_s, round=round)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_line_says_what_starts_and_ends_and_why_a_cell_failed_whole(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    """Log files are searched by line."""
    monkeypatch.setenv("TERM", "dumb")  # no table, and 80 columns
    said, why = io.StringIO(), "rank 1: out of memory in /a-very/long-path " * 9
    monkeypatch.setattr(said, "isatty", lambda: is_terminal)
    display = make_display(said)
    display.started("mlp-single-r0-00000001 (lr=0.2)", 2)
    display.ended("mlp-single-r0-00000001 (lr=0.2)", Ending("done", elapsed_s=2.0), 1234.0)
    display.ended("mlp-single-r1", Ending("failed", "oom", why, elapsed_s=2.0))
    for message in ("", "by hand"):
        display.ended("mlp-single-r2", Ending("done", message=message))
    assert (max(map(len, said.getvalue().splitlines())) <= 80) == is_terminal
    assert said.getvalue().replace(f"\n{' ' * 9}", " ").splitlines() == [
        "start    mlp-single-r0-00000001 (lr=0.2) on 2 devices",
        "done     mlp-single-r0-00000001 (lr=0.2) in 2.0 s, 1,234 samples/s",
        f"failed   mlp-single-r1 in 2.0 s: {why.strip()}",
        *(f"done     mlp-single-r2: {told}" for told in ("was done before", "by hand")),
    ]


def test_a_reason_is_told_once_whatever_ended_in_between() -> None:
    said, why = io.StringIO(), Ending("skipped", "host", "too few devices")
    display = make_display(said)
    for ending in (why, Ending("done"), why):
        display.ended(LONG, ending)
    assert said.getvalue().count(why.message) == 1


def test_no_total_is_claimed_while_rounds_may_be_added() -> None:
    assert counts(sweep()) == "3/12 cells done, 1 failed"
    assert counts(sweep(round=3)) == "3 cells done, round 3, 1 failed"
    assert left_words(sweep((), 30.0, round=3)) == "at least 30.0 s left"
    assert "done" not in left_words(sweep((), 0.5, round=3))


@pytest.mark.parametrize("held", [False, True, None])
def test_a_sweep_is_watched_as_long_as_somebody_runs_it(held: bool | None) -> None:
    """One that was killed leaves cells that wait, and do not start."""
    last: State = "running" if held is False else "waiting"
    killed = replace(sweep(), cells=(cell("done"), cell("waiting")))
    found = [replace(killed, cells=(cell("done"), cell(last)), held=held), killed]
    reader: Any = SimpleNamespace(read=iter(found * 2).__next__)
    assert [*_readings(reader, 0.0)] == found
    assert [*_readings(reader, None)] == found[:1], "read once where it is not watched"


def test_no_figure_is_given_for_time_that_none_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("scalewise.sweep.status_view.time.monotonic", lambda: now)
    said = io.StringIO()
    display = make_display(said)
    assert not display.is_due()
    for seconds_left in (42.0, 0.9, 0.0):
        now += 9.75
        assert not display.is_due()
        now += 0.25
        assert display.is_due()
        display.tick(sweep((), seconds_left))
        assert not display.is_due()
    assert [line.strip() for line in said.getvalue().splitlines()] == [
        "3/12 cells done, 1 failed, about 42.0 s left",
        "3/12 cells done, 1 failed, nearly done",  # once: it says nothing again
    ]
    edges = (0.049, 0.06, 59.9, 60.0, 3599.4, 3600.0)
    assert [*map(duration, edges)] == [
        "under 0.1 s", "0.1 s", "59.9 s", "1 min 00 s", "59 min 59 s", "1 h 00 min",
    ]  # fmt: skip
    assert [*map(_short, edges[2:])] == ["59.9 s", "1.0 min", "60.0 min", "1.0 h"]


def drawn(width: int, running: list[CellStatus], height: int = 24) -> list[str]:
    """What a terminal of that size is left with, line by line."""
    file = io.StringIO()
    display = Display(Console(file=file, force_terminal=True, width=width, height=height))
    display.tick(sweep(running, 8130.0))
    before = file.tell()
    display.ended("mlp", Ending("done", elapsed_s=2.0), 1234.0)
    display.close()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()[before:])
    return [line.rstrip() for line in plain.splitlines() if line.strip()]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_table_fits_a_terminal_of_any_width(width: int) -> None:
    said = drawn(width, RUNNING)
    assert max(map(len, said)) <= width
    rows = [line for line in said if line.startswith("gpt2")]
    for each, step in zip(rows[:2], ("84/120", "starting"), strict=True):
        assert step in each and "30.0 s" in each
    assert any(line.startswith("3/12 cells done, 1 failed, 2 running") for line in said)
    for total, step in ((120, 9), (1_000_000, 15)):
        columns = status_view._table([replace(RUNNING[0], total_steps=total)], width).columns
        assert [c.min_width for c in columns] == [None, None, step, None, 8, 8]


def test_a_terminal_of_few_lines_keeps_the_counts() -> None:
    said = drawn(80, RUNNING * 4, height=10)
    assert "3/12 cells done, 1 failed, 8 running, about 2 h 15 min left" in said
    assert next(line[-1] for line in drawn(40, RUNNING) if line.startswith("3/12")) == "…"


@pytest.mark.parametrize(
    ("running", "left_s", "said"),
    [
        ([], 8130.0, "about 2 h 15 min left"),
        (RUNNING[:1], 30.0, "1 running, about 30.0 s left: step 84/120"),
        ([cell("running", step=121)], 0.5, "1 running, nearly done: step 121"),
        (RUNNING[:1], 8130.0, "1 running, about 2 h 15 min left"),  # with the step it has no room
        (RUNNING, 30.0, "2 running, about 30.0 s left"),
    ],
)
def test_a_line_in_a_pipe_fits_80_columns_with_the_step_of_the_only_cell_where_there_is_room(
    monkeypatch: pytest.MonkeyPatch, running: list[CellStatus], left_s: float, said: str
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    file = io.StringIO()
    make_display(file).tick(sweep(running, left_s))
    assert file.getvalue() == f"{' ' * 9}3/12 cells done, 1 failed, {said}\n"


def test_cells_that_ended_without_a_result_are_counted() -> None:
    ends: dict[State, str] = {"done": "ended", "failed": "ended; 2 without a result"}
    for state, said in ends.items():
        assert status_view.estimate_line(replace(sweep(), cells=(cell(state),) * 2)) == said


# Times until the end of a sweep.
def waiting(config_id: str, devices: int | None = 1) -> CellStatus:
    return CellStatus("cell", "id", config_id, Ending("waiting"), devices)


def running(elapsed_s: float, left_s: float | None = None, devices: int = 1) -> CellStatus:
    return CellStatus(
        "cell", "id", "a", Ending("running"), devices, elapsed_s=elapsed_s, seconds_left=left_s
    )


KNOWN = (("a", 10.0), ("wide", 30.0))
NARROW, AHEAD = [waiting("a")] * 8, [waiting("a", 2)] * 6


@pytest.mark.parametrize(
    ("ended", "cells", "devices", "packed", "left_s"),
    [
        ((("a", 8.0), ("a", 12.0), ("b", 40.0)), [waiting("a")], 1, False, 10.0),
        ((("a", 8.0), ("a", 12.0), ("b", 40.0)), [waiting("new")], 1, False, 20.0),
        (KNOWN, [running(4.0)] * 2, 1, False, 12.0),
        (KNOWN, [running(14.0)], 1, False, 0.0),
        (KNOWN, [running(14.0, 3.0)] * 2, 1, False, 6.0),
        # First steps tell before any cell has ended.
        ((), [running(10.0, 30.0), waiting("b")], 1, False, 70.0),
        ((), [waiting("a")], 1, False, None),
        ((), [running(1.0)], 1, False, None),
        ((), [], 1, False, 0.0),
        (KNOWN, NARROW, 4, True, 20.0),
        (KNOWN, [*NARROW, waiting("wide")], 4, True, 30.0),  # the longest
        (KNOWN, [*NARROW, *[waiting("a", None)] * 3], 4, True, 50.0),  # auto takes all four
        # A cluster runs as many side by side as now.
        (KNOWN, [*[running(0.0, devices=2)] * 3, *AHEAD], None, False, 30.0),
        (KNOWN, AHEAD, None, False, 60.0),
    ],
)
def test_what_is_left_of_cells(
    ended: Any, cells: list[CellStatus], devices: int | None, packed: bool, left_s: float | None
) -> None:
    found = Durations()
    for config_id, seconds in ended:
        found.add(config_id, seconds)
    assert found.seconds_left(cells, devices, packed) == left_s


def test_a_cell_that_makes_no_step_is_told_of_once() -> None:
    file = io.StringIO()
    display = make_display(file)
    for elapsed_s in (59.0, 61.0, 71.0):
        display.tick(sweep([replace(cell("running"), elapsed_s=elapsed_s)]))
    said = " ".join(file.getvalue().split())
    assert said.count("slow ") == 1
    assert "no step in 1 min 01 s" in said
    assert f"f/{LONG}/logs" in said
