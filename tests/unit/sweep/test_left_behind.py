"""A resumed sweep that is given other choices says what is new and what it leaves unfinished."""

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
from scalewise.sweep.resume import differences, left_behind


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
    assert list(differences(folder, cells, staged=False)) == []
    assert unfinished(folder, {c.planned.cell_id for c in cells}) == ()
    assert unfinished(SweepFolder(folder.path / "no plan"), set()) == ()


def test_other_choices_say_what_is_new_and_what_is_left(folder: SweepFolder) -> None:
    assert list(differences(folder, [cell("a"), cell("e")], staged=False)) == [
        "new to sweep: 1 of 2 cells: e",
        "not asked for: 3 cells of sweep (1 failed, 1 interrupted, 1 never begun)",
    ]
    states = {planned.name: state for planned, state in left_behind(folder, ())}
    assert states == {"a": "done", "b": "failed", "c": "interrupted", "d": "waiting"}


def test_what_is_unfinished_comes_with_what_it_was_planned_with(folder: SweepFolder) -> None:
    lines = unfinished(folder, {"id-a", "id-b"})
    assert lines[0].startswith(f"left behind: 2 cells of {folder.path} that this command did not")
    assert lines[1:] == (
        "  c (interrupted): model=medium",
        "  d (never begun): model=medium",
    )
    assert unfinished(folder, {"id-c", "id-d"}) == (), "a failed cell was said when it failed"


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
