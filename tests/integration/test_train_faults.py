"""Whatever happens to a cell is recorded, leaves no process, and does not end the sweep."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from fakes.nvml import scenario as nvml
from fakes.proofs import RESTARTING, check_ran_anew
from fakes.requests import asked
from fakes.settings import job_in
from fakes.step_files import common_steps
from fakes.train_command import LEAN, SMALL, Finished, Train, wait_for
from scalewise.analysis import load_sweep
from scalewise.analysis.steps import find_long_steps, measure_throughput, timed_steps
from scalewise.host import usable_cores
from scalewise.records import (
    CellFolder,
    DeviceInfo,
    Ending,
    SweepFolder,
    read_device_series,
    read_heartbeat,
)
from scalewise.supervisor import Origin, from_line, to_line
from scalewise.sweep.running_cells import settings_of

OWN = (*LEAN, "dataset._target_=mine.Data", "batch_size=16")
FAULTY = (*OWN, "model._target_=mine.Faulty")
COLLECTIVE_S = 8
HANG_S = 6
FAULTS = {
    "none": "+model.fault=none",
    "sigkill_once": "+model.fault=sigkill_once",
    "absent": f"+model.fault=hang sweep.retries=0 sweep.collective_timeout_s={COLLECTIVE_S}",
    "hang": f"+model.fault=hang +model.rank=1 sweep.retries=0 sweep.hang_timeout_s={HANG_S}",
}
"""Cell to what is typed for it: almost every one fails in its own way."""


@pytest.fixture(scope="module")
def faults(shared_train: Train, elsewhere: Path) -> Finished:
    """One sweep with a cell for each of ``FAULTS``."""
    return shared_train(
        *RESTARTING, "monitor.devices=false", "sweep.grace_s=1", "-m",
        f"hydra.sweeper.grids={json.dumps([*FAULTS.values()])}", cwd=elsewhere,
    )  # fmt: skip


def cell(faults: Finished, name: str) -> CellFolder:
    typed = {*FAULTS[name].split()}
    (found,) = (folder for cell, folder in faults.cells().values() if typed <= {*cell.overrides})
    return found


def test_the_sweep_goes_on_around_failed_cells(faults: Finished) -> None:
    assert cell(faults, "none").is_done()
    assert faults.status == 1
    assert "scalewise resume " in faults.err
    assert faults.err.count("failed   ") == 2, faults.err
    assert not cell(faults, "hang").is_done()
    assert "Traceback" not in faults.err


def test_a_cell_whose_rank_was_killed_once_runs_anew(faults: Finished) -> None:
    assert "retry 1 of 1" in faults.err
    check_ran_anew(cell(faults, "none"), cell(faults, "sigkill_once"), rel=0)


def test_a_rank_that_never_enters_a_collective_is_named_by_who_waits(faults: Finished) -> None:
    """Gloo's own time-out, long before anybody would call the cell hung."""
    fault = cell(faults, "absent")
    (attempt,) = fault.attempts()
    assert (attempt.cause, attempt.rank) == ("hang", 1)
    assert attempt.message == (
        "rank 0 waited 8 s (sweep.collective_timeout_s) in a collective for rank 1, which did not "
        "enter it; logs/ have the stacks"
    )
    assert "in fail" in fault.log_path(1, "err").read_text(), "where the absent rank is"
    assert f"{COLLECTIVE_S}000ms" in fault.load_rank_error(0).message
    last_step = read_heartbeat(fault.heartbeat_path(1))
    assert last_step is not None and last_step.step == 16
    assert attempt.finished_at - last_step.time < COLLECTIVE_S + 15


def test_no_cell_left_a_process_behind(faults: Finished, shared_train: Train) -> None:
    """Not even those that a rank had moved into sessions of their own."""
    assert shared_train.processes() == {}


def test_a_hang_is_seen_and_every_ranks_stack_is_kept(faults: Finished) -> None:
    fault = cell(faults, "hang")
    (attempt,) = fault.attempts()
    assert attempt.cause == "hang"
    assert "no rank made a step for " in attempt.message
    stacks = [fault.log_path(rank, "err").read_text() for rank in (0, 1)]
    assert "in fail" in stacks[1]
    assert all("most recent call first" in text for text in stacks)


def test_ctrl_c_keeps_what_is_done_and_resume_runs_the_rest(train: Train, own_code: Path) -> None:
    command = (*FAULTY, "+model.step_ms=100", "seed=1,2", "max_steps=8")
    sweep = train.start(*command, "-m", cwd=own_code)
    folder = SweepFolder(wait_for(lambda: train.sweeps(own_code), "the sweep's folder").pop())
    written = "*/steps/rank0.bin"
    wait_for(lambda: sum(p.stat().st_size > 0 for p in folder.path.glob(written)) == 2, "two cells")

    pressed = time.monotonic()
    os.killpg(sweep.pid, signal.SIGINT)
    _, err = sweep.communicate(timeout=30)
    assert time.monotonic() - pressed < 10
    assert (sweep.returncode, train.processes()) == (130, {})
    assert f"finish it: scalewise resume {folder.path.relative_to(own_code)}\n" in err
    assert "Traceback" not in err
    # Looked at now: a cell may have ended while the keys were pressed.
    finished = {p.parent.name: p.stat().st_mtime_ns for p in folder.path.glob("*/result.json")}

    # Two more things a crash may leave: a torn result, and step records cut off in a row.
    interrupted = next(cell for p, cell in folder.cells() if p.name not in finished)
    (interrupted.path / "result.json").write_text('{"schema_version": 1, "cell')
    with interrupted.log_path(0, "err").open("a") as log:
        log.write("of the first try")
    for torn in interrupted.path.glob("steps/*.bin"):
        torn.write_bytes(torn.read_bytes()[:-7])
    assert "done" in {cell.state for cell in load_sweep(folder.path).cells}
    before = contents(interrupted.path)
    assert {"steps/rank0.bin", "result.json"} <= before.keys()

    run = train(*command, "-m", f"sweep.resume={folder.path}", cwd=own_code)
    assert run.status == 0, run.err
    assert run.folder is None, "a resumed sweep makes no new folder"
    for _, cell in folder.cells():
        assert cell.is_done()
        if cell.name in finished:
            assert (cell.path / "result.json").stat().st_mtime_ns == finished[cell.name]
    assert run.err.count("was done before") == len(finished)
    (said,) = [line for line in run.err.splitlines() if "earlier/1" in line]
    assert interrupted.name in said and "result.json" in said
    kept = CellFolder(interrupted.path / "earlier" / "1")
    # The tries are the cell's, whatever became of their records.
    moved = {path: held for path, held in before.items() if not path.startswith("attempts/")}
    assert contents(kept.path) == moved
    assert interrupted.steps_path(0).read_bytes() != kept.steps_path(0).read_bytes()


def contents(folder: Path) -> dict[str, bytes]:
    """Every record by its path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


STOP_S = 3.0


def test_a_pause_of_a_rank_is_a_long_step_that_is_set_aside_and_said(train: Train) -> None:
    head = train.start(
        *SMALL, "-m", "hardware=cpu", "strategy=ddp", "strategy.devices=2", "max_steps=600",
        "validation=never", "sweep.retries=0",
    )  # fmt: skip
    folder = train.training(beyond=20)
    (pid,) = (one for one in train.ranks() if psutil.Process(one).name() == "rank 1")
    os.kill(pid, signal.SIGSTOP)
    time.sleep(STOP_S)
    os.kill(pid, signal.SIGCONT)
    _, err = head.communicate(timeout=60)
    assert head.returncode == 0, err
    (cell,) = load_sweep(folder.path.parent).cells
    long = find_long_steps(timed_steps(cell.steps, 2))
    assert long.are_set_aside
    longest = max(long.found, key=lambda one: one.seconds)
    assert STOP_S - 0.5 < longest.seconds < STOP_S + 2
    measured = measure_throughput(common_steps(cell.steps, 2))
    assert measured.steps == len(cell.steps[0].timed()) - len(long.found)
    whole_s = max(one.timed().column("step").sum() for one in cell.steps) / 1e3
    assert measured.seconds < whole_s - STOP_S + 0.5
    report = (folder.path.parent / "report" / "details.md").read_text()
    assert f"single steps took seconds: step {longest.step} took" in report


def test_a_gpu_that_vanishes_is_noted_and_training_goes_on(train: Train, tmp_path: Path) -> None:
    """The supervisor alone, with what a sweep would tell it.

    The rank computes on the CPU; the GPU it is said to have is a fake driver's.
    """
    scenario = nvml.Scenario().h200(1)
    scenario.fault(0, "*", nvml.GPU_IS_LOST, at=2)
    path = scenario.write(tmp_path / "scenario.txt", from_opening=True)
    folder = CellFolder(tmp_path / "cell")
    one = asked(*SMALL, "monitor.devices=true", "monitor.interval_s=0.2", "max_steps=500")
    folder.save_config(one.plain)
    slot = DeviceInfo("cpu", "a CPU", nvml.gpu_uuid(0), cores=usable_cores()[:1])
    origin = Origin(str(train.cwd), tuple(filter(None, sys.path)), ("train.py",))
    job = replace(job_in(folder.path, settings_of(one.cell, 1)), slots=(slot,), origin=origin)
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "scalewise.supervisor.supervisor"], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, env={**train.environment, **nvml.variables(path)},
    ) as supervisor:  # fmt: skip
        supervisor.stdin.write(to_line(job))
        supervisor.stdin.flush()
        ending = from_line(Ending, supervisor.stdout.read())
    assert ending.outcome == "done", ending
    (path,) = folder.device_series_paths()
    series = read_device_series(path)
    assert series.source == "nvml"
    assert any("lost" in problem.lower() for problem in series.problems), series.problems
    assert series.values(nvml.gpu_uuid(0), "memory_used_mib")[0] is not None
    assert folder.load_result().world_size == 1


# Disks


def test_a_disk_that_fills_up_in_training_fails_the_cell(train: Train, small_disk: Path) -> None:
    endless = ("max_steps=1000000", "validation=never")
    head = train.start(*SMALL, *endless, f"hydra.run.dir={small_disk}/sweep")
    wait_for(lambda: list(small_disk.glob("sweep/*/heartbeat/*")), "steps")
    with contextlib.suppress(OSError):  # the cell takes some of the room meanwhile
        (small_disk / "ballast").write_bytes(bytes(shutil.disk_usage(small_disk).total))
    run = train.finish(head)
    assert run.status == 1, run.err
    assert "No space left on device" in run.err
    assert "Traceback" not in run.err


def test_what_is_not_written_at_the_end_or_resumed_is_named(train: Train, small_disk: Path) -> None:
    sweep = small_disk / "sweep"
    done = train(*SMALL, f"hydra.run.dir={sweep}")
    assert done.status == 0, done.err
    shutil.rmtree(sweep / "report")  # into what is left, Hydra's files fit, and plots do not
    (small_disk / "ballast").write_bytes(bytes(shutil.disk_usage(small_disk).free - 100_000))
    full = train(*SMALL, f"sweep.resume={sweep}")
    assert full.status == 74, full.err
    assert f"{sweep}/report" in full.err
    assert "Traceback" not in full.err
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    refused = train(*SMALL, f"sweep.resume={sweep}")
    assert refused.status == 1, refused.err
    assert refused.err.splitlines()[1].startswith(f"error: {sweep}/")
