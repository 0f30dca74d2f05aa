"""Budgets and retries where cells run on other hosts: hosts and a SLURM that only answer."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from scalewise.cluster.ray_engine import HostLink, Lost, RayConfig, RayEngine
from scalewise.cluster.slurm_engine import SlurmEngine

from scalewise.cluster import ray_engine, slurm_engine
from scalewise.cluster.hosts import Demand, Order
from scalewise.cluster.slurm import JobState, SlurmConfig
from scalewise.config import conf_dir, resolve
from scalewise.records import Attempt, CellFolder
from scalewise.supervisor import Outcome
from scalewise.sweep import Cell, SweepReport, make_display
from scalewise.sweep.plan import plan, request
from scalewise.sweep.progress import Budget


def cells(*overrides: str, repeats: int) -> list[Cell]:
    typed = ["tracking=none", "hardware=cpu", f"repeats={repeats}", *overrides]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        plain = resolve(compose(config_name="config", overrides=typed))
    return plan([request(typed, plain)], 0)


class AnsweringLink(HostLink):
    """A host that has answered already."""

    host = "node1"

    def __init__(self, answer: Outcome | Lost) -> None:
        self._answer = answer

    def answer(self) -> Outcome | Lost:
        return self._answer

    def tell(self, line: str) -> None: ...

    def stop(self) -> None: ...

    def drop(self) -> None: ...


class AnsweringEngine(RayEngine):
    """Each try ends at once with the next of ``answers``."""

    def __init__(self, folder: Path, answers: list[Outcome | Lost]) -> None:
        super().__init__(folder, RayConfig(), make_display(io.StringIO()))
        self.answers = answers
        self.tries = 0

    def _ask_for(self, cell: Cell) -> None:
        self._queue.append((cell, Demand(1, 1, 0, 1)))

    def _links(self, order: Order) -> Sequence[HostLink]:
        self.tries += 1
        return [AnsweringLink(self.answers.pop(0))]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    connected = SimpleNamespace(nodes_without=lambda path: [], close=lambda: None)
    monkeypatch.setattr(ray_engine, "RayCluster", lambda *_: connected)
    monkeypatch.setattr(ray_engine, "_LOOK_S", 0.01)
    monkeypatch.setattr(ray_engine, "_LOST_S", 0.0)
    monkeypatch.setattr(slurm_engine, "_LOOK_S", 0.01)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("retries", "tries"), [(0, 1), (2, 3)])
def test_a_cell_that_keeps_losing_its_host_is_tried_as_often_as_asked(
    tmp_path: Path, retries: int, tries: int
) -> None:
    engine = AnsweringEngine(tmp_path, [Lost("node1 was lost")] * 4)
    report = engine.run(cells(f"sweep.retries={retries}", repeats=1))
    assert (engine.tries, report.count("failed")) == (tries, 1)
    (_, folder), *_ = engine.folder.cells()
    assert [attempt.cause for attempt in folder.attempts()] == ["host"] * tries


@pytest.mark.usefixtures("at_once")
def test_a_lost_host_gets_the_time_to_end_its_part_before_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may still write to the cell's folder: two tries at once would mix their records."""
    monkeypatch.setattr(ray_engine, "_LOST_S", 0.5)
    engine = AnsweringEngine(tmp_path, [Lost("node1 was lost")] * 2)
    engine.run(cells("sweep.retries=1", repeats=1))
    (_, folder), *_ = engine.folder.cells()
    first, second = folder.attempts()
    assert second.started_at - first.finished_at > 0.4


@pytest.mark.usefixtures("at_once")
def test_where_only_the_supervisor_was_lost_nobody_waits_for_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "_LOST_S", 3600.0)
    killed = Lost("the supervisor on node1 was ended by SIGKILL", is_host=False)
    engine = AnsweringEngine(tmp_path, [killed] * 2)
    engine.run(cells("sweep.retries=1", repeats=1))
    assert engine.tries == 2


@pytest.mark.usefixtures("at_once")
def test_what_hosts_have_used_ends_a_sweep_with_a_budget(tmp_path: Path) -> None:
    engine = AnsweringEngine(tmp_path, [Lost("node1 was lost")] * 4)
    report = engine.run(cells("sweep.retries=0", "sweep.max_gpu_hours=1e-9", repeats=3))
    assert (engine.tries, report.count("failed"), report.count("unstarted")) == (1, 1, 2)


class Slurm:
    """A cluster on which each job ends at once, of the next of ``causes``."""

    def __init__(self, folder: Path, causes: list[str]) -> None:
        self.folder = folder
        self.causes = causes
        self.batches: list[int] = []

    def submit(self, executor: Any, jobs: Sequence[Any]) -> list[Any]:
        self.batches.append(len(jobs))
        for job in jobs:
            cell = CellFolder(Path(job.order.folder))
            number, cause = cell.next_attempt_number(), self.causes.pop(0)
            cell.save_attempt(
                Attempt(number, "failed", cause, "gone", 0, 1, (), 0.0, 0.0)  # type: ignore[arg-type]
            )
        paths = SimpleNamespace(stdout=self.folder / "log")
        return [SimpleNamespace(job_id=str(i), paths=paths) for i in range(len(jobs))]


def on_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, causes: list[str], wanted: list[Cell]
) -> tuple[Slurm, SweepReport]:
    cluster = Slurm(tmp_path, causes)
    monkeypatch.setattr(slurm_engine, "require_slurm", lambda: None)
    monkeypatch.setattr(slurm_engine, "make_executor", lambda *_: None)
    monkeypatch.setattr(slurm_engine, "submit", cluster.submit)
    monkeypatch.setattr(slurm_engine, "states", lambda ids: dict.fromkeys(ids, JobState("FAILED")))
    config = SlurmConfig(poll_s=0.1, settle_s=0, time_min=60)
    engine = SlurmEngine(tmp_path / "sweep", config, make_display(io.StringIO()))
    return cluster, engine.run(wanted)


@pytest.mark.usefixtures("at_once")
def test_slurm_gets_a_cell_again_as_often_as_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = cells("sweep.retries=2", repeats=1)
    cluster, report = on_slurm(tmp_path, monkeypatch, ["host"] * 9, wanted)
    assert (cluster.batches, report.count("failed")) == ([1, 1, 1], 1)


@pytest.mark.usefixtures("at_once")
def test_slurm_gets_a_preempted_cell_again_whatever_the_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = cells("sweep.retries=0", repeats=1)
    causes = ["preempted", "preempted", "exception"]
    cluster, report = on_slurm(tmp_path, monkeypatch, causes, wanted)
    assert (cluster.batches, report.count("failed")) == ([1, 1, 1], 1)


@pytest.mark.usefixtures("at_once")
def test_slurm_gets_no_more_jobs_at_once_than_the_budget_covers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may take an hour, as far as anybody knows."""
    wanted = cells("sweep.max_gpu_hours=2.5", repeats=5)
    cluster, report = on_slurm(tmp_path, monkeypatch, ["exception"] * 5, wanted)
    assert (cluster.batches, report.count("failed")) == ([2, 2, 1], 5), "they took no time"


@pytest.mark.parametrize(
    ("used_s", "expected", "ahead", "places"),
    [
        (0.0, [None, None, None], [], ([0], [1, 2], [])),
        (0.0, [1000.0, 1000.0, None], [], ([0, 1], [2], [])),
        (0.0, [1000.0], [(1, 3000.0)], ([], [0], [])),
        (3000.0, [1000.0, 500.0], [], ([1], [], [0])),
        (3600.0, [None], [], ([], [], [0])),
    ],
)
def test_what_a_queue_may_be_given(
    used_s: float,
    expected: list[float | None],
    ahead: list[tuple[int, float]],
    places: tuple[list[int], list[int], list[int]],
) -> None:
    """An hour of one device, and a time limit of an hour."""
    found = Budget(1.0, used_s).share_out(1, expected, 3600.0, ahead)
    assert (list(found.now), list(found.later), list(found.never)) == places
