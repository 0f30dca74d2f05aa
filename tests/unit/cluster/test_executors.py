"""Budgets and retries where cells run on other hosts: hosts and a SLURM that only answer."""

import io
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from fakes.requests import asked
from scalewise.cluster import ray_executor, slurm_executor
from scalewise.cluster.hosts import ClusterDemand, Order
from scalewise.cluster.ray_executor import HostLink, RayConfig, RayExecutor
from scalewise.cluster.slurm import JobState, QueueUnreachable, SlurmConfig
from scalewise.cluster.slurm_executor import SlurmCell, SlurmExecutor, Submission
from scalewise.config import ConfigError
from scalewise.records import Cause, CellFolder, Ending
from scalewise.sweep import Cell, Engine, SweepReport, make_display
from scalewise.sweep.plan import plan


def cells(*overrides: str) -> list[Cell]:
    return plan([asked("tracking=none", "hardware=cpu", "repeats=1", *overrides)], 0)


LOST = Ending("failed", "host", "node1 was lost")


class Answering(RayExecutor):
    """Each try ends at once, and alike."""

    def __init__(self, answer: Ending) -> None:
        super().__init__(RayConfig())
        self.link = Mock(HostLink, host="node1", answer=lambda: answer)

    def demand(self, cell: Cell) -> ClusterDemand:
        return ClusterDemand(cell.planned.devices or 1, 1, 0, 1)

    def links(self, reservation: object, order: Order) -> Sequence[HostLink]:
        return [self.link]


class Rooms:
    """A cluster with room for everybody, which counts what was reserved and not given back."""

    def __init__(self) -> None:
        self.taken = 0

    def reserve(self, wanted: ClusterDemand, whole_nodes: bool) -> Any:
        self.taken += 1
        return SimpleNamespace(is_ready=lambda: True, free=self._free)

    def _free(self) -> None:
        self.taken -= 1

    def close(self) -> None:
        assert self.taken == 0


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_executor, "RayCluster", lambda *_: Rooms())
    monkeypatch.setattr(ray_executor, "_LOOK_S", 0.01)
    monkeypatch.setattr(slurm_executor, "_LOOK_S", 0.01)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("lost", "waits"),
    [(LOST, True), (Ending("failed", "supervisor_lost", "it was ended by SIGKILL"), False)],
)
def test_a_lost_host_alone_gets_the_time_to_end_its_part_before_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: Ending, waits: bool
) -> None:
    """It may still write to the cell's folder: two tries at once would mix their records."""
    monkeypatch.setattr(ray_executor, "_LOST_S", 0.5)
    engine = Engine(tmp_path, Answering(lost), make_display(io.StringIO()))
    assert engine.run(cells("sweep.retries=1")).count("failed") == 1
    ((_, folder),) = engine.folder.cells()
    first, second = folder.attempts()
    assert first.cause == second.cause == lost.cause
    assert (second.started_at - first.started_at > 0.4) is waits


class Slurm:
    """A cluster on which each job ends at once, of the next of ``causes``."""

    def __init__(self, folder: Path, causes: list[Cause]) -> None:
        self.folder = folder
        self.causes = causes
        self.batches: list[int] = []
        self.jobs: list[Any] = []

    def submit(self, executor: Any, jobs: Sequence[Any]) -> list[Any]:
        self.batches.append(len(jobs))
        self.jobs += jobs
        for job in jobs:
            cell = CellFolder(Path(job.order.folder))
            number, cause = cell.next_attempt_number(), self.causes.pop(0)
            cell.save_attempt(Ending("failed", cause, "gone", 0, 1, number=number))
        paths = SimpleNamespace(stdout=self.folder / "log")
        return [SimpleNamespace(job_id=str(i), paths=paths) for i in range(len(jobs))]


def on_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, causes: list[Cause], wanted: list[Cell]
) -> tuple[Slurm, SweepReport]:
    cluster = Slurm(tmp_path, causes)
    monkeypatch.setattr(slurm_executor, "require_slurm", lambda: None)
    monkeypatch.setattr(slurm_executor, "make_executor", lambda *_: None)
    monkeypatch.setattr(slurm_executor, "submit", cluster.submit)
    monkeypatch.setattr(slurm_executor, "states", lambda of: dict.fromkeys(of, JobState("FAILED")))
    config = SlurmConfig(poll_s=0.1, settle_s=0, time_min=60)
    engine = Engine(tmp_path / "sweep", SlurmExecutor(config), make_display(io.StringIO()))
    return cluster, engine.run(wanted)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("retries", "causes"), [(2, ["host"] * 9), (0, ["preempted", "preempted", "exception"])]
)
def test_slurm_gets_a_cell_again_as_often_as_asked_and_a_preempted_one_always(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retries: int, causes: list[Cause]
) -> None:
    cluster, report = on_slurm(tmp_path, monkeypatch, causes, cells(f"sweep.retries={retries}"))
    assert (cluster.batches, report.count("failed")) == ([1, 1, 1], 1)


@pytest.mark.usefixtures("at_once")
def test_slurm_gets_rounds_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each = ((), ("seed=9",), ("strategy=ddp", "strategy.devices=2"))
    wanted = plan([asked("tracking=none", "repeats=3", *own) for own in each], 0)
    cluster, _ = on_slurm(tmp_path, monkeypatch, ["exception"] * 9, wanted)
    assert sorted(cluster.batches[:2]) == [1, 2], "an array of each width"
    assert [job.order.cell.repeat for job in cluster.jobs] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


# Ctrl-C on a cluster: which jobs are cancelled, and what their cells are said to be.
class Cluster:
    """Ends a cancelled job when it has been asked for its state a few times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, looks: int = 1):
        self.cancelled: list[str] = []
        self._looks = looks
        self.answers = True
        monkeypatch.setattr(slurm_executor, "cancel", self._cancel)
        monkeypatch.setattr(slurm_executor, "states", self._states)
        monkeypatch.setattr(slurm_executor, "_ASK_EVERY_S", 0.001)

    def _cancel(self, ids: Iterable[str]) -> None:
        if not self.answers:
            raise QueueUnreachable("scancel: no route")
        self.cancelled += ids

    def _states(self, ids: Iterable[str]) -> dict[str, JobState]:
        self._looks -= 1
        return dict.fromkeys(ids, JobState("CANCELLED" if self._looks <= 0 else "COMPLETING"))


def job(path: Path, number: int) -> SlurmCell:
    cell: Any = SimpleNamespace(planned=SimpleNamespace(cell_id=f"cell{number}"))
    wanted = ClusterDemand(1, 1, 0, 1)
    told = Submission(str(number), 0.0, 1, wanted, str(path / "log"))
    return SlurmCell(cell, CellFolder(path / f"cell{number}"), wanted, told, JobState("RUNNING"))


def interrupt(jobs: list[SlurmCell], wait_s: float = 10.0) -> list[str]:
    """Cancel ``jobs``; returns what is said."""
    executor, said = SlurmExecutor(SlurmConfig()), list[str]()
    executor._note = said.append
    executor.cancel(jobs, time.monotonic() + wait_s)
    return said


@pytest.mark.parametrize(("looks", "wait_s"), [(3, 10.0), (10**9, 0.02)])
def test_every_job_is_cancelled_and_its_cell_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: int, wait_s: float
) -> None:
    """A job that is slow to end counts as cancelled at the deadline."""
    cluster, jobs = Cluster(monkeypatch, looks), [job(tmp_path, 1), job(tmp_path, 2)]
    not_sent = job(tmp_path, 3)
    not_sent.submission = None
    assert (interrupt([*jobs, not_sent], wait_s), cluster.cancelled) == ([], ["1", "2"])
    for sent in jobs:
        (attempt,) = sent.folder.attempts()
        assert (attempt.cause, attempt.outcome) == ("interrupted", "interrupted")


def test_a_cell_done_in_time_has_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Cluster(monkeypatch)
    sent = job(tmp_path, 1)
    monkeypatch.setattr(CellFolder, "find_result", lambda folder, cell_id: "its result")
    interrupt([sent])
    assert list(sent.folder.attempts()) == []


def test_where_slurm_does_not_answer_it_is_said_which_jobs_may_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Cluster(monkeypatch).answers = False
    jobs = [job(tmp_path, 1), job(tmp_path, 2)]
    assert interrupt(jobs) == [
        "the jobs may go on, SLURM does not answer (scancel: no route): scancel 1 2"
    ]
    assert all(not list(sent.folder.attempts()) for sent in jobs), "nobody knows how they end"


@pytest.mark.parametrize("record", ["", '{"job_id": "7"}'])
def test_a_cell_whose_job_is_not_known_is_no_second_job(tmp_path: Path, record: str) -> None:
    executor, (cell,) = SlurmExecutor(SlurmConfig()), cells()
    folder = CellFolder(tmp_path)
    assert executor.find_running(cell, folder) is None, "it was never submitted"
    (tmp_path / "slurm.json").write_text(record)
    with pytest.raises(ConfigError, match="may still be a job"):
        executor.find_running(cell, folder)
