"""The state of a sweep, read from records as a sweep leaves them."""

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from fakes.kept_sweep import RESULTS, kept
from fakes.recorded import RecordedCell, Spec, plan_sweep, write_sweep
from fakes.step_files import BLOCK_BYTES
from scalewise.cli import main
from scalewise.host import CLASS_FILES
from scalewise.records import Cause, Ending, HeartbeatWriter, RunningAttempt, SweepFolder
from scalewise.sweep import status_view, way_to_finish
from scalewise.sweep.resume import lock_folder
from scalewise.sweep.status import CellStatus, StatusReader, with_progress
from scalewise.sweep.status_view import estimate_line, render


@pytest.fixture
def sweep(tmp_path: Path) -> SweepFolder:
    """Four cells: done, failed, running at step 30 of 120, waiting."""
    folder = plan_sweep(tmp_path / "sweep", ["done", "failed", "running", "waiting"])
    RecordedCell(folder.cell("done"), steps=100).succeed()
    RecordedCell(folder.cell("failed"), steps=20).fail()
    running = RecordedCell(folder.cell("running"), steps=30)
    running.close()
    folder.cell("running").save_running(RunningAttempt(1, time.time() - 20, tuple(running.devices)))
    for rank in range(2):
        writer = HeartbeatWriter(folder.cell("running").heartbeat_path(rank))
        writer.begin(120)
        writer._times[3] = time.time() - 10  # when training began
        writer.beat(30, 30 * 16)
        writer.close()
    return folder


def states(sweep: SweepFolder) -> dict[str, CellStatus]:
    return {cell.name: cell for cell in StatusReader(sweep.path).read().cells}


def test_every_cell_is_in_its_state(sweep: SweepFolder) -> None:
    cells = states(sweep)
    assert {name: cell.state for name, cell in cells.items()} == {
        "done": "done", "failed": "failed", "running": "running", "waiting": "waiting",
    }  # fmt: skip
    assert cells["failed"].ending.message == "rank 1 ran out of memory"
    assert cells["done"].global_samples_per_s == pytest.approx(2 * 16 / 0.1)
    ending = cells["done"].ending
    assert cells["done"].elapsed_s == ending.elapsed_s == pytest.approx(10.0)
    assert ending.finished_at - ending.started_at == pytest.approx(10.0)
    assert cells["waiting"].step is None
    sweep.cell("failed").queued_path.touch()
    with lock_folder(sweep):
        assert states(sweep)["failed"].state == "waiting", "it is to run again"
    stopped = states(sweep)["failed"].ending
    assert (stopped.outcome, stopped.cause) == ("failed", None), "nobody knows whether it is mended"
    assert stopped.message.endswith("the one before: rank 1 ran out of memory")


def test_a_running_cell_tells_step_rate_and_time_left_a_sweep_of_all(sweep: SweepFolder) -> None:
    """30 s by heartbeats, and one cell of another configuration as long as the one done, 10 s."""
    status = StatusReader(sweep.path).read()
    cell = status.cells[2]
    assert (cell.step, cell.total_steps, cell.devices) == (30, 120, 2)
    assert cell.elapsed_s == pytest.approx(20.0, rel=0.2)
    assert cell.global_samples_per_s == pytest.approx(2 * 30 * 16 / 10, rel=0.05)
    assert cell.seconds_left == pytest.approx(30.0, rel=0.05)
    assert status.seconds_left == pytest.approx(30 + 10, rel=0.05)
    assert "left: ends about " in estimate_line(status)
    sweep.cell("running").heartbeat_path(1).unlink()
    assert states(sweep)["running"].step == 0, "one of its ranks has not begun"


@pytest.mark.parametrize(
    ("beats", "total", "elapsed_s", "told"),
    [
        ([(10, 160), (12, 190)], 20, 0.5, (10, 20, 700.0, 0.5)),  # the slowest says how far it is
        ([(0, 0), (0, 0)], 20, 0.5, (0, 20, None, None)),
        ([(10, 0), (10, 0)], -1, 4.0, (10, None, None, None)),
        ([(1, 16), (1, 16)], 2, 0.0, (1, 2, None, 0.0)),
        ([(30, 480), (30, 480)], 20, 3.0, (30, 20, 320.0, 0.0)),
        ([(10, 160)], 20, 3.0, (0, None, None, None)),  # the other has not begun
    ],
)
def test_heartbeats_tell_step_rate_and_time_left(
    monkeypatch: pytest.MonkeyPatch, beats: Any, total: int, elapsed_s: float, told: Any
) -> None:
    found = [SimpleNamespace(step=step, samples=samples, started_at=5.0, time=5.0 + elapsed_s,
                             total_steps=total) for step, samples in beats]  # fmt: skip
    left = iter([*found, None])
    monkeypatch.setattr("scalewise.sweep.status.read_heartbeat", lambda _: next(left))
    seen = with_progress(CellStatus("a", "a", "c", Ending("running"), 2), Mock())
    assert (seen.step, seen.total_steps, seen.global_samples_per_s, seen.seconds_left) == told


def test_only_cells_that_changed_are_read_again(sweep: SweepFolder) -> None:
    reader = StatusReader(sweep.path)
    reader.read()
    RecordedCell(sweep.cell("waiting"), steps=100).succeed()
    assert [reader.read(changed=ids).count().get("done") for ids in ((), ("id-waiting",))] == [1, 2]


def test_the_command_prints_a_table_and_json(
    sweep: SweepFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["status", str(sweep.path), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["count"] == {"done": 1, "failed": 1, "running": 1, "waiting": 1}
    assert plain["cells"][2]["total_steps"] == 120

    shutil.copytree(sweep.path, sweep.path.parent / "multirun" / "newest")
    monkeypatch.chdir(sweep.path.parent)
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["status"]) == 0
    assert "1/4 cells done, 1 failed, 1 running" in capsys.readouterr().out


def test_an_archive_is_read_as_its_folder_is(capsys: pytest.CaptureFixture[str]) -> None:
    archive = RESULTS / "cpu2_matrix.zip"
    assert main(["status", str(archive), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert (plain["folder"], plain["count"]) == (str(archive), {"done": 12})
    assert main(["status", str(archive), "--watch"]) == 0
    assert "a sweep that still prepares" in capsys.readouterr().err
    assert main(["resume", str(archive)]) == 2
    assert "found a file; unpack it" in capsys.readouterr().err


def test_columns_stay_where_they_are_while_a_cell_runs(sweep: SweepFolder) -> None:
    found = StatusReader(sweep.path).read()
    heads = set()
    for step, took_s, left_s in ((0, 0.5, None), (3, 61.0, 3599.0), (99, 5e3, 9e4)):
        cells = [replace(cell, step=step, total_steps=4000, elapsed_s=took_s, seconds_left=left_s)
                 if cell.state == "running" else cell for cell in found.cells]  # fmt: skip
        Console(file=(file := StringIO()), width=60).print(render(replace(found, cells=cells), 60))
        heads.add(file.getvalue().splitlines()[0])
    assert len(heads) == 1


def test_a_failed_cell_tells_where_to_look_and_nothing_is_cut(
    sweep: SweepFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sweep.cell("failed")
    last = next(iter(folder.attempts()))
    folder.save_attempt(replace(last, raised_at="/home/user/my_model.py:12"))
    log = folder.log_path(1, "err")
    log.parent.mkdir()
    log.touch()
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["status", str(sweep.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("failed: failed: rank 1 ran out of memory")
    assert lines[at + 1 : at + 4] == ["  raised at /home/user/my_model.py:12", "  log:", f"  {log}"]
    (running,) = [line for line in lines if line.startswith("running ")]
    assert "30/120" in running
    cell = states(sweep)["failed"]
    assert (cell.ending.raised_at, cell.log) == ("/home/user/my_model.py:12", str(log))


def test_where_there_is_no_sweep_the_command_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["status", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.endswith("; give the folder of a sweep, e.g. multirun/<sweep>\n")
    assert main(["compare", str(tmp_path), str(tmp_path), "--factor", "code"]) == 2
    assert said == capsys.readouterr().err.replace("scalewise compare:", "scalewise status:")
    assert main(["status", str(tmp_path / "none")]) == 2
    assert "none: no such folder; give the folder of a sweep\n" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert main(["status"]) == 2
    assert "multirun: no sweep here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("damage", "measured", "problem"),
    [
        (lambda whole: whole[: -40 * BLOCK_BYTES], True,
         "samples/s are in doubt: steps/rank1.bin: 60 of 100 step rows are there"),
        (lambda whole: whole[:40], False,
         "samples/s are not known: steps/rank1.bin: the header is torn"),
        (lambda whole: whole + b"\x5a" * 3 * BLOCK_BYTES, False,
         "samples/s are not known: steps/rank1.bin: a block of rows has an impossible length"),
    ],
)  # fmt: skip
def test_damaged_steps_put_the_figure_in_doubt(
    sweep: SweepFolder, damage: Callable[[bytes], bytes], measured: bool, problem: str
) -> None:
    path = sweep.cell("done").steps_path(1)
    path.write_bytes(damage(path.read_bytes()))
    cell = states(sweep)["done"]
    assert cell.state == "done"
    assert cell.global_samples_per_s == (pytest.approx(2 * 16 / 0.1) if measured else None)
    assert cell.problem.startswith(problem)


def silence(sweep: SweepFolder) -> None:
    os.utime(sweep.cell("running").path / "running.json", (time.time() - 60,) * 2)


def tear_attempt(sweep: SweepFolder) -> None:
    (path,) = (sweep.cell("failed").path / "attempts").glob("*.json")
    path.write_text("{")


def swap_result(sweep: SweepFolder) -> None:
    path = sweep.cell("done").path / "result.json"
    path.write_text(path.read_text().replace("id-done", "id-other"))


def tear_result(sweep: SweepFolder) -> None:
    folder = sweep.cell("done")
    for rank in range(2):
        writer = HeartbeatWriter(folder.heartbeat_path(rank))
        writer.begin(100)
        writer.beat(100, 1600)
        writer.close()
    path = folder.path / "result.json"
    path.write_text(path.read_text()[:-30])


@pytest.mark.parametrize(
    ("name", "spoil", "step", "why"),
    [
        ("done", tear_result, 100, "it ended, but its result cannot be used: result.json: cannot"),
        ("running", silence, 30, "nobody recorded why"),
        ("failed", tear_attempt, None, "attempts/1.json"),
        ("done", swap_result, None, "result of cell id-other; that of cell id-done was expected"),
    ],
)
def test_a_cell_whose_records_are_damaged_is_interrupted(
    sweep: SweepFolder, name: str, spoil: Callable[[SweepFolder], None], step: int | None, why: str
) -> None:
    spoil(sweep)
    cell = states(sweep)[name]
    assert (cell.state, cell.step, cell.elapsed_s) == ("interrupted", step, None)
    assert why in cell.ending.message


def test_a_sweep_between_two_cells_runs_while_somebody_has_its_lock(sweep: SweepFolder) -> None:
    """A resume that had just begun was called "not running; finish it with sweep.resume"."""
    shutil.rmtree(sweep.cell("running").path)
    reader = StatusReader(sweep.path)
    assert not reader.read().running, "there is no lock yet"
    with lock_folder(sweep):
        held = reader.read()
    assert held.running
    assert "scalewise resume " not in estimate_line(held)
    ended = reader.read()
    assert not ended.running
    said = "not running; 3 to do, failed ones included, would take about 30.0 s\nmend it, then:\n"
    assert estimate_line(ended).startswith(f"{said}  scalewise resume "), "all but the one done"


@pytest.mark.parametrize(
    ("cause", "raised_at", "first", "anew"),
    [
        ("exception", "/own/my.py:12", "mend /own/my.py:12, then", " sweep.rerun=all"),
        ("exception", "/own/new.py:1", "mend /own/new.py:1, then", ""),
        *(("exception", at, "mend it, then", "") for at in (None, status_view.__file__)),
        *(("peer", None, "finish it", ""), ("supervisor_lost", None, "finish it", "")),
        ("signal", None, "finish it", ""),
    ],
)
def test_what_comes_back_is_mended_first_and_what_is_done_of_that_code_runs_anew(
    sweep: SweepFolder, cause: Cause, raised_at: str | None, first: str, anew: str
) -> None:
    done = sweep.cell("done")
    done.save_provenance(replace(done.load_provenance(), code={CLASS_FILES: {"my.py": "0"}}))
    endings = [Ending("interrupted"), Ending("failed", cause, exit_code=-9, raised_at=raised_at)]
    way, *cost = way_to_finish(sweep.path, endings).replace("then:\n ", "then:").splitlines()
    assert way == f"{first}: scalewise resume {sweep.path}{anew}"
    # Of the code that is done, and of what was typed.
    assert len(cost) == ((2 * bool(anew) or first == "mend it, then") + (cause == "exception"))
    assert way_to_finish(sweep.path.with_suffix(".zip"), endings) == ""
    assert ("killed: " in way_to_finish(sweep.path, endings[1:])) == (cause == "signal")
    # A script's own file is not among its code.
    done.save_provenance(replace(done.load_provenance(), code={}, data={"script": "1 ab"}))
    assert ("sweep.rerun=all" in way_to_finish(sweep.path, endings)) == (cause == "exception")


def test_a_sweep_that_may_add_rounds_says_which_it_is_in(
    sweep: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = sweep.load_plan()
    cells = [replace(one, repeat=n) for one, n in zip(plan.cells, (0, 1, 2, 5), strict=True)]
    sweep.save_plan(replace(plan, cells=tuple(cells)))
    monkeypatch.setattr(StatusReader, "_most_runs", lambda *_: 5)
    with lock_folder(sweep):
        status = StatusReader(sweep.path).read()
        monkeypatch.setattr(StatusReader, "_most_runs", lambda *_: 1)
        all_planned = StatusReader(sweep.path).read()
    assert (status.round, all_planned.round) == (3, None)
    assert StatusReader(sweep.path).read().round is None


@pytest.mark.parametrize("width", [80, 120])
def test_no_swept_value_and_no_part_of_a_name_is_broken(width: int) -> None:
    for sweep in ("cpu2_matrix", "rehearsal/gpt2_x4_nvlink"):
        status, file = StatusReader(kept(sweep)).read(), StringIO()
        failed = replace(status.cells[0], ending=Ending("failed", message="no room " * 20))
        status = replace(status, folder=sweep, cells=(failed, *status.cells[1:]))
        Console(file=file, width=width).print(render(status, width), soft_wrap=True)
        assert ("swept" in file.getvalue()) == any(cell.swept for cell in status.cells)
        words = {word for line in file.getvalue().splitlines() for word in line.split()}
        for cell in status.cells:
            assert {*cell.swept.split()} <= words
            assert {*cell.name.split("-")} <= {part for word in words for part in word.split("-")}
        assert max(map(len, file.getvalue().splitlines())) <= width


def test_of_many_done_cells_only_those_that_a_table_shows_are_measured(tmp_path: Path) -> None:
    folder = SweepFolder(write_sweep(tmp_path, [Spec(seed=seed) for seed in range(3)]))
    cells = StatusReader(folder.path, most_measured=2).read().cells
    rates = [cell.global_samples_per_s for cell in cells]
    assert [rate is not None for rate in rates] == [True, True, False]
    assert all(c.global_samples_per_s for c in StatusReader(folder.path).read().cells)
