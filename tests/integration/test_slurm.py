"""The same sweep on a real SLURM. `make slurm-test` starts one; without it these tests skip."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fakes import train_command
from fakes.step_files import common_steps
from fakes.train_command import ROOT, SMALL, Finished, Train, end, make_train, makes_steps, wait_for
from scalewise.analysis import load_sweep
from scalewise.analysis.balance import audit_shards
from scalewise.analysis.steps import find_long_steps, measure_throughput, timed_steps
from scalewise.config import config_id, repeat_id
from scalewise.records import CellFolder, SweepFolder, read_shard, read_steps
from scalewise.sweep.status import StatusReader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SLURM = (
    "-m", "hardware=cpu", "hydra/launcher=slurm", "hydra.launcher.policy=packed",
    "hydra.launcher.gpus_per_device=1", "hydra.launcher.cpus_per_device=1",
    "hydra.launcher.time_min=5", "hydra.launcher.poll_s=0.5", "hydra.launcher.settle_s=5",
)  # fmt: skip
ON_SLURM = (*SMALL, *SLURM)
STEPS = 4000
PREEMPTIBLE = (*ON_SLURM, f"max_steps={STEPS}", "validation=never")
LONG = ("max_steps=1000000", "validation=never")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Train]:
    """A runner in the test cluster; whatever a test leaves running fails it."""
    if shutil.which("scontrol") is None:
        pytest.skip("SLURM is not installed; make slurm-test does it on Debian")
    asked = subprocess.run(
        ["scontrol", "show", "config"], capture_output=True, text=True, check=False
    )
    if asked.returncode != 0:
        pytest.skip("no SLURM controller answers; make slurm-test starts one")
    if "= scalewise-test" not in asked.stdout:
        pytest.skip("the SLURM here is not the one of make slurm-test: tests do not use it")
    runner = make_train(tmp_path_factory.mktemp("slurm"))
    runner.environment["SLURM_CONF"] = os.environ["SLURM_CONF"]
    yield runner
    left = end(runner)
    subprocess.run(["scancel", "--user", str(os.getuid())], check=False)
    assert left == {}


MIXED = (
    *train_command.LEAN, "batch_size=16", *SLURM, "strategy=single,ddp",
    "model._target_=mine.Faulty", "dataset._target_=mine.Data", "+model.fault=none,exception",
    "+model.rank=0", "hydra.launcher.devices_per_node=2",
)  # fmt: skip
"""Widths 1 and 2, each once sound and once with a fault, with a user's own code."""


@pytest.fixture(scope="module")
def mixed(slurm: Train, elsewhere: Path) -> Finished:
    return slurm(*MIXED, cwd=elsewhere)


def submission(folder: CellFolder) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads((folder.path / "slurm.json").read_text())
    return plain


def job(folder: CellFolder) -> str:
    return str(submission(folder)["job_id"])


def shown(job_id: str) -> str:
    """All that SLURM knows of a job."""
    return subprocess.check_output(["scontrol", "--oneliner", "show", "job", job_id], text=True)


def test_mixed_widths_and_faults_end_as_on_a_local_host(mixed: Finished) -> None:
    assert mixed.status == 1, mixed.err
    folders = [folder for _, folder in mixed.cells().values()]
    done = [f for f in folders if f.is_done()]
    failed = [f for f in folders if not f.is_done()]
    assert sorted(f.load_result().world_size for f in done) == [1, 2]
    assert all(f.load_result().ranks[0].steps_completed == 12 for f in done)
    assert len(failed) == 2
    for folder in failed:
        (attempt,) = folder.attempts()
        assert (attempt.outcome, attempt.cause) == ("failed", "exception")
        assert f"(SLURM job {job(folder)}: FAILED)" in attempt.message
        assert attempt.last_lines
    assert ", then:\n  scalewise resume " in mixed.err
    assert (mixed.sweep.report_path / "report.md").is_file()


def test_cells_have_the_ids_and_folders_of_a_local_sweep(mixed: Finished) -> None:
    for name, (planned, folder) in mixed.cells().items():
        assert planned.cell_id == repeat_id(config_id(folder.load_config()), planned.repeat)
        assert folder.path == mixed.sweep.path / name


def test_each_width_is_an_array_that_asks_for_its_gpus(mixed: Finished) -> None:
    arrays: dict[int, set[str]] = {}
    for _, folder in mixed.cells().values():
        width = submission(folder)["wanted"]["width"]
        array, _, task = job(folder).partition("_")
        assert task in ("0", "1")
        arrays.setdefault(width, set()).add(array)
        text = shown(job(folder))
        assert f"gpu:{width}" in text
        assert f"NumCPUs={width} NumTasks=1 CPUs/Task={width}" in text
    assert {width: len(ids) for width, ids in arrays.items()} == {1: 1, 2: 1}


def test_resume_submits_what_is_not_done(slurm: Train, mixed: Finished, elsewhere: Path) -> None:
    before = {n: submission(f) for n, (_, f) in mixed.cells().items()}
    assert slurm(*MIXED, f"sweep.resume={mixed.folder}", cwd=elsewhere).status == 1
    for name, (_, folder) in mixed.cells().items():
        assert (submission(folder) == before[name]) == folder.is_done()
        assert len(list(folder.attempts())) == (0 if folder.is_done() else 2)


def started(slurm: Train, *arguments: str) -> tuple[subprocess.Popen[str], CellFolder]:
    """A sweep and its only cell, which makes steps that count."""
    known = slurm.sweeps()
    return slurm.start(*arguments), slurm.training(known, beyond=100)


def ended(slurm: Train, head: subprocess.Popen[str], status: int) -> str:
    """What a sweep said that ended with ``status`` and left no process."""
    _, err = head.communicate(timeout=180)
    assert head.returncode == status, err
    wait_for(lambda: not slurm.processes(), "the end of all processes", 30)
    return err


def test_a_cancelled_job_is_recorded_as_interrupted(slurm: Train) -> None:
    head, folder = started(slurm, *ON_SLURM, *LONG)
    subprocess.run(["scancel", job(folder)], check=True)
    ended(slurm, head, 130)
    (attempt,) = folder.attempts()
    assert (attempt.outcome, attempt.cause) == ("interrupted", "interrupted")
    assert f"(SLURM job {job(folder)}: CANCELLED)" in attempt.message


def test_ctrl_c_cancels_the_jobs(slurm: Train) -> None:
    head, folder = started(slurm, *ON_SLURM, *LONG)
    os.kill(head.pid, signal.SIGINT)
    ended(slurm, head, 130)
    assert "JobState=CANCELLED" in shown(job(folder))
    (attempt,) = folder.attempts()
    assert attempt.outcome == "interrupted"


def test_jobs_outlive_their_sweep_and_are_found_again(slurm: Train) -> None:
    command = (*ON_SLURM, "max_steps=3000", "validation=never")
    head, folder = started(slurm, *command)
    head.kill()
    head.communicate()
    first = submission(folder)
    again = slurm(*command, f"sweep.resume={folder.path.parent}")
    assert again.status == 0, again.err
    assert f"still is SLURM job {job(folder)}" in again.err or folder.load_result().attempt == 1
    assert (submission(folder), list(folder.attempts())) == (first, [])


def test_a_requeued_job_starts_its_cell_anew(slurm: Train) -> None:
    head, folder = started(slurm, *ON_SLURM, "max_steps=4000", "validation=never")
    (status,) = StatusReader(folder.path.parent).read().cells
    assert (status.state, status.total_steps) == ("running", 4000)
    subprocess.run(["scontrol", "requeue", job(folder)], check=True)
    assert "requeued" in ended(slurm, head, 0)
    (attempt,) = folder.attempts()
    assert (attempt.outcome, folder.load_result().attempt) == ("interrupted", 2)
    assert folder.load_result().ranks[0].steps_completed == 4000


@contextmanager
def urgent_job(cores: int) -> Iterator[None]:
    """A job of higher priority, from the moment it runs, for which others have to make way."""
    words = ("--partition=urgent", "--nodes=1", f"--cpus-per-task={cores}", "--output=/dev/null")
    wrapped = "--wrap=sleep 3"
    job_id = subprocess.check_output(["sbatch", "--parsable", *words, wrapped], text=True).strip()
    wait_for(lambda: "JobState=PENDING" not in shown(job_id), "the urgent job's turn", 60)
    yield
    subprocess.run(["scancel", "--quiet", job_id], check=False)


def check_it_ran_anew(folder: CellFolder) -> None:
    """A preempted cell is done: what was before is in no figure, and nobody is blamed for it."""
    (attempt,) = folder.attempts()
    assert (attempt.outcome, attempt.cause) == ("interrupted", "preempted")
    assert "SLURM preempted the job" in attempt.message
    result = folder.load_result()
    assert (result.attempt, result.ranks[0].steps_completed) == (2, STEPS)
    assert result.started_at >= attempt.finished_at
    assert read_steps(folder.steps_path(0), 0).rows["step"].tolist() == list(range(STEPS))


@pytest.mark.parametrize(
    ("partition", "may_requeue"),
    [("requeued", True), ("warned", True), ("cancelled", True), ("requeued", False)],
)
def test_a_preempted_cell_runs_anew(slurm: Train, partition: str, may_requeue: bool) -> None:
    """Requeued by SLURM, at once or after a time of grace; cancelled after one; cancelled."""
    options = () if may_requeue else ("+hydra.launcher.extra.no-requeue=true",)
    head, folder = started(slurm, *PREEMPTIBLE, f"hydra.launcher.partition={partition}", *options)
    first = job(folder)
    began = time.monotonic()
    with urgent_job(cores=2):
        # KillWait is 10 s and the time of grace 30 s: the cell needs neither to its end.
        assert time.monotonic() - began < 25
    err = ended(slurm, head, 0)
    check_it_ran_anew(folder)
    assert (job(folder) == first) == may_requeue
    assert f"SLURM preempted the job (SLURM job {first}" in err or may_requeue


def test_a_suspended_cell_goes_on_and_its_pause_is_a_long_step(slurm: Train) -> None:
    """All of its processes are stopped, its supervisor too.

    As ``PreemptMode=SUSPEND`` does it, which needs GANG, under which no other mode tells a job that
    it is preempted: by hand, the cluster of these tests can do both.
    """
    pause_s = 8
    head, folder = started(slurm, *PREEMPTIBLE, "strategy=ddp", "strategy.devices=2")
    job_id = job(folder)
    subprocess.run(["scontrol", "suspend", job_id], check=True)
    assert "JobState=SUSPENDED" in shown(job_id)
    time.sleep(pause_s)
    subprocess.run(["scontrol", "resume", job_id], check=True)
    ended(slurm, head, 0)
    assert list(folder.attempts()) == []
    result = folder.load_result()
    assert (result.attempt, result.ranks[0].steps_completed) == (1, STEPS)
    (cell,) = load_sweep(folder.path.parent).cells
    long = find_long_steps(timed_steps(cell.steps, 2))
    assert pause_s - 1 < sum(one.seconds for one in long.found) < 2 * pause_s + 5
    timed = len(cell.steps[0].timed())
    assert measure_throughput(common_steps(cell.steps, 2)).steps == timed - len(long.found)


def test_one_task_of_an_array_is_preempted_and_the_other_goes_on(slurm: Train) -> None:
    known = slurm.sweeps()
    head = slurm.start(*PREEMPTIBLE, "seed=1,2", "hydra.launcher.partition=requeued")
    sweep = SweepFolder(wait_for(lambda: slurm.sweeps() - known, "a sweep", 60).pop())
    wait_for(sweep.plan_path.exists, "its plan")
    folders = [folder for _, folder in sweep.cells()]
    wait_for(lambda: all(map(makes_steps, folders)), "their first steps", 90)
    arrays = {job(folder).partition("_")[0] for folder in folders}
    with urgent_job(cores=1):
        assert [len(list(folder.attempts())) for folder in folders].count(1) == 1
    ended(slurm, head, 0)
    stayed, preempted = sorted(folders, key=lambda folder: len(list(folder.attempts())))
    assert (list(stayed.attempts()), stayed.load_result().attempt) == ([], 1)
    check_it_ran_anew(preempted)
    assert ({job(folder).partition("_")[0] for folder in folders}, len(arrays)) == (arrays, 1)


def test_a_time_limit_is_recorded_before_slurm_ends_the_job(slurm: Train) -> None:
    run = slurm(*ON_SLURM, *LONG, "hydra.launcher.time_min=1", "hydra.launcher.signal_delay_s=45")
    assert run.status == 1, run.err
    (attempt,) = run.only_cell().attempts()
    assert (attempt.outcome, attempt.cause) == ("failed", "timeout")
    assert "hydra.launcher.time_min=1" in attempt.message


def test_a_cell_no_node_can_hold_is_skipped_and_the_others_run(slurm: Train) -> None:
    run = slurm(*ON_SLURM, "strategy=ddp", "strategy.devices=2,16", "max_steps=4")
    assert run.status == 3, run.err
    by_width = {planned.devices: folder for planned, folder in run.cells().values()}
    assert by_width[2].is_done()
    (attempt,) = by_width[16].attempts()
    assert attempt.outcome == "skipped"
    assert "SLURM" in attempt.message
    assert "JobState=CANCELLED" in shown(job(by_width[16]))


def test_two_tasks_that_each_start_the_command_train_once(slurm: Train, tmp_path: Path) -> None:
    """The mistake of `srun torchrun`: every task starting all ranks."""
    script = tmp_path / "job.sh"
    command = f"{' '.join(slurm.script)} {' '.join(SMALL)} hardware=cpu strategy=ddp"
    script.write_text(f"#!/bin/bash\nsrun --ntasks=2 {command}\n")
    log = tmp_path / "job.log"
    subprocess.run(
        ["sbatch", "--wait", "--ntasks=2", f"--output={log}", str(script)], cwd=tmp_path,
        env={**slurm.environment, "PYTHONPATH": str(ROOT / "src")}, check=True, timeout=150,
    )  # fmt: skip
    assert "process 1 of srun's 2 stands down" in log.read_text()
    (result,) = (tmp_path / "multirun").glob("*/*/result.json")
    assert CellFolder(result.parent).load_result().world_size == 2


ON_TWO_NODES = ("strategy=ddp", "strategy.devices=2", "hydra.launcher.devices_per_node=1")


def test_a_cell_on_two_nodes_makes_way_on_one_and_runs_anew_on_both(slurm: Train) -> None:
    head, folder = started(slurm, *PREEMPTIBLE, *ON_TWO_NODES, "hydra.launcher.partition=spread")
    assert "NumNodes=2" in shown(job(folder))
    with urgent_job(cores=2):
        pass
    ended(slurm, head, 0)
    check_it_ran_anew(folder)
    ranks = folder.load_result().ranks
    assert [(rank.rank, rank.local_rank) for rank in ranks] == [(0, 0), (1, 0)]
    assert [rank.steps_completed for rank in ranks] == [STEPS, STEPS]
    shards = [read_shard(folder.shard_path(rank), rank) for rank in range(2)]
    assert audit_shards(shards, 2, 16).verdict == "sharded"


def test_the_node_that_failed_first_is_blamed(slurm: Train, elsewhere: Path) -> None:
    run = slurm(
        *MIXED[: MIXED.index("strategy=single,ddp")], *ON_TWO_NODES,
        "hydra.launcher.partition=two", "model._target_=mine.Faulty",
        "dataset._target_=mine.Data", "+model.fault=exception", cwd=elsewhere,
    )  # fmt: skip
    assert run.status == 1, run.err
    (attempt,) = run.only_cell().attempts()
    assert (attempt.rank, attempt.cause) == (1, "exception")
    assert "a fault of my own" in attempt.message
    wait_for(lambda: not slurm.processes(), "the end of all processes", 30)
