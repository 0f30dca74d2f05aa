"""A resumed sweep that is given other choices says what it leaves unfinished."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fakes.recorded_cell import RecordedCell, plan_sweep
from scalewise.cli import hydra_main
from scalewise.records import Ending, PlannedCell, SweepFolder
from scalewise.sweep import Cell, SweepReport, unfinished
from scalewise.sweep.resume import left_behind


def cell(name: str) -> Cell:
    planned = PlannedCell(f"id-{name}", f"cfg-{name}", name, (f"model={name}",), 0, 1)
    return Cell(planned, cast(Any, SimpleNamespace()))


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    """``a`` is done, ``b`` has failed, ``c`` was interrupted, ``d`` was never begun."""
    sweep = plan_sweep(tmp_path / "sweep", ["a", "b", "c", "d"])
    for name in ("a", "b"):
        recorded = RecordedCell(sweep.cell(name))
        recorded.train(20)
        recorded.succeed() if name == "a" else recorded.fail()
    done = sweep.cell("a").load_result()
    sweep.cell("a").save_result(replace(done, cell_id="id-a"))
    interrupt(sweep, "c")
    return sweep


def interrupt(sweep: SweepFolder, name: str) -> None:
    sweep.cell(name).path.mkdir(parents=True, exist_ok=True)
    sweep.cell(name).save_attempt(
        Ending("interrupted", "interrupted", "ended", None, None, None, (), 1, 1.0, 2.0)
    )


def test_the_same_command_leaves_nothing(folder: SweepFolder) -> None:
    cells = [cell(name) for name in "abcd"]
    assert unfinished(folder, {c.planned.cell_id for c in cells}) is None
    assert unfinished(SweepFolder(folder.path / "no plan"), set()) is None


def test_every_planned_cell_that_was_not_asked_for_has_its_state(folder: SweepFolder) -> None:
    states = {planned.name: state for planned, state in left_behind(folder, ())}
    assert states == {"a": "done", "b": "failed", "c": "interrupted", "d": "waiting"}


def test_what_is_unfinished_is_named(folder: SweepFolder) -> None:
    line = unfinished(folder, {"id-a", "id-b"})
    assert line is not None
    assert line.startswith(f"left behind: 2 cells of {folder.path} without a result")
    assert ": c, d;" in line
    assert unfinished(folder, {"id-c", "id-d"}) is None, "a failed cell was said when it failed"


@pytest.mark.parametrize(("asked", "status"), [("abcd", 0), ("ab", 3)])
def test_the_exit_status_tells_that_something_is_left(
    folder: SweepFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    asked: str,
    status: int,
) -> None:
    report = SweepReport(folder.path, cells=[cell(name) for name in asked])
    monkeypatch.setattr(hydra_main, "sweep_reports", [report])
    assert hydra_main.report() == status
    assert ("left behind: 2 cells" in capsys.readouterr().err) == (status == 3)
