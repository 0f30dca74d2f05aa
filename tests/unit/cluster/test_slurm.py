"""The demands of a cell on SLURM, and how SLURM's answers are read."""

import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.requests import asked
from scalewise.cluster import RayExecutor, SlurmExecutor, slurm, slurm_job
from scalewise.cluster.hosts import ClusterDemand, Order, demand, granted
from scalewise.cluster.slurm import ENDED, GONE, JobState, neighbours, preempted, states, submit
from scalewise.cluster.slurm_executor import SlurmCell, Submission, job_arrays
from scalewise.cluster.slurm_job import CellJob, refuse_other_tasks
from scalewise.config import CellConfig, ConfigError, HardwareConfig
from scalewise.gpu import HostMismatch
from scalewise.records import CellFolder, Ending, PlannedCell, RunningAttempt, build
from scalewise.supervisor import Origin
from scalewise.sweep import memory_advice


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose programs stand in for SLURM's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


PLANNED = PlannedCell("id", "config", "cell", (), 0, 1)


def order_of(folder: CellFolder) -> Order:
    return Order(str(folder.path), PLANNED, ClusterDemand(1, 1, 1, 1), Origin(".", (), ()))


def sent_of(path: Path, state: str, config: CellConfig | None = None) -> SlurmCell:
    """A cell of one device, sent as job 5."""
    cell: Any = SimpleNamespace(planned=PLANNED, request=SimpleNamespace(cell=config))
    wanted = ClusterDemand(1, 1, 0, 1)
    submission = Submission("5", 0.0, 1, wanted, str(path / "log"))
    return SlurmCell(cell, CellFolder(path), wanted, submission, JobState(state))


def program(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("launcher", "options", "complaint"),
    [
        (SlurmExecutor, {"extra": {"ntasks-per-node": 4}}, "extra: found ntasks-per-node"),
        (SlurmExecutor, {"extra": {"ntasks_per_node": 4}}, "extra: found ntasks-per-node"),
        (SlurmExecutor, {"time_min": 0}, "time_min: found 0; allowed: "),
        (SlurmExecutor, {"gpus_per_device": 2}, "gpus_per_device: found 2; allowed: "),
        (SlurmExecutor, {"partitoin": "gpu"}, "partitoin: unknown key"),
        (SlurmExecutor, {"policy": "wild"}, "policy: found 'wild'"),
        (RayExecutor, {"address": "ray://head:10001"}, "address: found 'ray://head:10001'"),
        (RayExecutor, {"gpus_per_device": 2}, "gpus_per_device: found 2"),
        (RayExecutor, {"policy": "greedy"}, "policy: found 'greedy'"),
    ],
)
def test_wrong_options_are_one_line(launcher: Any, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        launcher.of(options)
    assert str(caught.value).startswith(f"hydra.launcher.{complaint}")
    assert "\n" not in str(caught.value)


def cell_of(devices: int | str) -> CellConfig:
    how = ["strategy=single"] if devices == 1 else ["strategy=ddp", f"strategy.devices={devices}"]
    return asked(*how, "batch_size=320").cell


@pytest.mark.parametrize(
    ("devices", "options", "wanted", "said"),
    [
        (1, {}, ClusterDemand(1, 1, 1, 4), "1 GPU"),
        (4, {"devices_per_node": 8}, ClusterDemand(4, 1, 4, 4), "4 GPUs"),
        ("auto", {"devices_per_node": 2}, ClusterDemand(2, 1, 2, 4), "2 GPUs"),
        (16, {"devices_per_node": 8}, ClusterDemand(16, 2, 8, 4), "16 GPUs on 2 nodes"),
        (2, {"gpus_per_device": 0, "cpus_per_device": 3}, ClusterDemand(2, 1, 0, 3),
         "2 CPU devices"),
    ],
)  # fmt: skip
def test_the_width_of_a_cell_decides_what_it_asks_for(
    devices: int | str, options: dict[str, Any], wanted: ClusterDemand, said: str
) -> None:
    found = demand(cell_of(devices), SlurmExecutor.of(options).config)
    assert (repr(found), str(found)) == (repr(wanted), said), "2.0 GPUs would be refused"


@pytest.mark.parametrize(
    ("devices", "options", "complaint"),
    [
        ("auto", {}, "set strategy.devices or hydra.launcher.devices_per_node"),
        ("auto", {"devices_per_node": 1}, "use strategy=single"),
        (10, {"devices_per_node": 4}, "cannot share equally"),
    ],
)
def test_a_width_that_cannot_be_asked_for_is_said(
    devices: int | str, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(HostMismatch, match=complaint):
        demand(cell_of(devices), SlurmExecutor.of(options).config)


def test_a_script_has_a_task_a_node_and_its_ranks_cores(tmp_path: Path, commands: Path) -> None:
    program(commands, "srun", "exit 1")
    program(commands, "sbatch", f"cp $1 {tmp_path}/sent; echo job 5")
    config = SlurmExecutor.of(
        {"partition": "gpu", "extra": {"constraint": "h200"}, "mem_gb_per_device": 1.5}
    ).config
    executor = slurm.make_executor(tmp_path, config, ClusterDemand(4, 2, 2, 3))
    jobs = [CellJob(order_of(CellFolder(tmp_path)), 60, 60)] * 3
    assert [job.job_id for job in submit(executor, jobs)] == ["5_0", "5_1", "5_2"]
    lines = (tmp_path / "sent").read_text().splitlines()
    assert {line.removeprefix("#SBATCH --") for line in lines} >= {
        "array=0-2%3", "constraint=h200", "cpus-per-task=6", "exclusive", "gpus-per-node=2",
        "mem=3072M", "nodes=2", "ntasks-per-node=1", "partition=gpu", "requeue", "time=60",
    }  # fmt: skip
    (start,) = [line for line in lines if line.startswith("srun")]
    assert "--kill-on-bad-exit=1 --cpus-per-task=6" in start
    submit(executor, jobs[:1])
    assert "--array" not in (tmp_path / "sent").read_text()


def test_many_cells_are_several_arrays() -> None:
    wanted, planned = ClusterDemand(1, 1, 0, 1), SimpleNamespace(planned=PLANNED)
    cells: Any = [SimpleNamespace(cell=planned, demand=wanted) for _ in range(2300)]
    arrays = list(job_arrays(cells))
    assert [len(array) for array in arrays] == [1000, 1000, 300]
    assert [cell for array in arrays for cell in array] == cells


def test_several_tasks_on_one_node_train_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "4")
    with pytest.raises(HostMismatch, match="SLURM_NTASKS=4"):
        refuse_other_tasks(1)
    refuse_other_tasks(4)


@pytest.mark.parametrize(
    ("ran_s", "cause", "words"),
    [(495, "timeout", "hydra.launcher.time_min=10"), (494, "preempted", "SLURM preempted the job")],
)
def test_a_warning_while_the_supervisor_starts_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran_s: int, cause: str, words: str
) -> None:
    """It dies of being told to end before it can write a word.

    SLURM warns of the limit 45 s before, and by its manual up to a minute early.
    """
    folder = CellFolder(tmp_path / "cell")
    folder.path.mkdir()
    job = CellJob(order_of(folder), 10, 45)
    monkeypatch.setattr(slurm_job, "_began", 0.0)
    monkeypatch.setattr(slurm_job, "time", SimpleNamespace(monotonic=lambda: float(ran_s)))
    with subprocess.Popen(["sleep", "60"]) as deaf:
        monkeypatch.setattr(slurm_job, "_supervisors", [SimpleNamespace(process=deaf)])
        job.checkpoint()
    (attempt,) = folder.attempts()
    assert (attempt.cause, words in attempt.message) == (cause, True)


def test_a_job_that_sees_no_gpu_does_not_train_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cell: Any = SimpleNamespace(hardware=HardwareConfig("auto"))
    with pytest.raises(HostMismatch, match="1 GPUs were granted, and none can be seen here"):
        granted(cell, ClusterDemand(1, 1, 1, 1))


def test_a_cpu_device_has_the_cores_and_a_host_the_share_that_was_asked_for() -> None:
    cell: Any = SimpleNamespace(hardware=HardwareConfig("cpu", kind="cpu"))
    auto: Any = SimpleNamespace(hardware=HardwareConfig("auto"))
    devices = len(os.sched_getaffinity(0))
    (slot, *others) = granted(cell, ClusterDemand(4 * devices, 4, 1, 1)).slots
    assert (slot.kind, len(slot.cores), len(others)) == ("cpu", 1, devices - 1)
    with pytest.raises(HostMismatch, match="4000 were asked for"):
        granted(auto, ClusterDemand(4000, 1, 0, 1))


def test_waiting_for_what_the_cluster_has_not_is_told_from_waiting() -> None:
    assert JobState("PENDING", "PartitionConfig").hopeless
    assert not JobState("PENDING", "Resources").hopeless
    assert not JobState("RUNNING", "None").hopeless


def test_a_job_that_the_controller_forgot_has_ended(commands: Path) -> None:
    program(commands, "squeue", "echo '7_0|RUNNING|None'; echo '7_1|PENDING|Resources'")
    found = states(["7_0", "7_1", "6"])
    assert found["7_0"] == JobState("RUNNING", "None")
    assert not found["7_1"].ended
    assert found["6"] == JobState(GONE) and found["6"].ended
    assert all(build(Ending, {"outcome": "failed", **told}) for told in ENDED.values())


def test_a_controller_that_is_down_says_nothing_about_jobs(commands: Path) -> None:
    program(commands, "squeue", "echo 'slurm_load_jobs error: Unable to contact' >&2; exit 1")
    with pytest.raises(slurm.QueueUnreachable, match="squeue: slurm_load_jobs error"):
        states(["5"])


@pytest.mark.parametrize(
    ("said", "ask", "expected"),
    [
        ("2026-11-22T00:38:22", lambda: preempted("5"), True),
        ("N/A", lambda: preempted("5"), False),
        ("", lambda: preempted("5"), False),
        (r"6\n5\n4", lambda: neighbours("node1", "5"), ("SLURM job 4", "SLURM job 6")),
    ],
)
def test_slurm_says_whether_it_preempted_a_job_and_who_else_is_on_its_node(
    commands: Path, said: str, ask: Any, expected: Any
) -> None:
    program(commands, "squeue", f"printf '{said}'")
    assert ask() == expected


def test_a_run_that_died_without_a_word_is_not_blamed_on_the_one_before(tmp_path: Path) -> None:
    """The first run of the job was preempted; of the second there is only that it had begun."""
    folder = CellFolder(tmp_path)
    folder.save_attempt(Ending("interrupted", "preempted", "SLURM preempted the job", number=1))
    sent = sent_of(tmp_path, "NODE_FAIL")
    sent.ended = time.monotonic() - 30
    folder.save_running(RunningAttempt(2, 2.0, ()))
    assert sent.ending(settle_s=60.0) is None, "its last file may still come"
    ending = sent.ending(settle_s=29.0)
    assert (ending.outcome, ending.cause) == ("failed", "host")
    assert [attempt.cause for attempt in folder.attempts()] == ["preempted", "host"]


def test_who_ran_out_of_host_memory_reads_what_to_ask_for_and_needs_less(tmp_path: Path) -> None:
    medium = asked("model=medium").cell
    less = memory_advice(medium, 1)
    assert less.startswith("what needs less memory: ")
    told = sent_of(tmp_path / "silent", "OUT_OF_MEMORY", medium).record_end()
    more = "; to ask SLURM for more of the host's: a larger hydra.launcher.mem_gb_per_device"
    assert told.outcome == "failed" and told.message.endswith(f"/log{more}; {less}")
    for said, advised in (("it was killed", f"; {less}"), (f"it was killed; {less}", "")):
        killed = sent_of(tmp_path / str(len(said)), "OUT_OF_MEMORY", medium)
        killed.folder.save_attempt(Ending("failed", "signal", said, 0, -9, number=1))
        told = killed.record_end()
        assert told.message == f"{said} (SLURM job 5: OUT_OF_MEMORY){more}{advised}"
        (attempt,) = killed.folder.attempts()
        assert (attempt.cause, attempt.message) == ("oom", told.message)


@pytest.mark.parametrize(("elapsed_s", "spent_s"), [(70.0, 70.0), (None, 300.0)])
def test_a_failed_job_took_what_its_record_says_as_one_with_a_result_did(
    tmp_path: Path, elapsed_s: float | None, spent_s: float
) -> None:
    sent = sent_of(tmp_path, "FAILED")
    sent.started, sent.ended = 100.0, 400.0
    sent.folder.save_attempt(Ending("failed", "exception", "x", number=1, elapsed_s=elapsed_s))
    assert sent.ending(settle_s=0.0).elapsed_s == spent_s


def test_a_requeued_job_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("scalewise.cluster.slurm_executor.time.monotonic", lambda: now)
    sent = sent_of(tmp_path, "PENDING")
    assert not sent.follow(JobState("PENDING"))
    assert not sent.follow(JobState("RUNNING"))
    now = 180.0
    assert sent.age_s == 80.0
    assert sent.follow(JobState("PENDING"))
    assert sent.age_s is None
    assert not sent.follow(JobState("RUNNING"))
    now = 200.0
    sent.follow(JobState("FAILED"))
    now = 300.0
    assert sent.age_s == 20.0, "until its end"
