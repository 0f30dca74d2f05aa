"""Ctrl-C on a cluster: which jobs are cancelled, and what their cells are said to be."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalewise.cluster import slurm_engine
from scalewise.cluster.hosts import Demand
from scalewise.cluster.slurm import JobState, QueueUnreachable
from scalewise.cluster.slurm_engine import Sent, Submission, interrupt
from scalewise.records import CellFolder, CellResult, DeviceInfo, RankSummary


class Cluster:
    """Ends a cancelled job when it has been asked for its state a few times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, looks: int = 1, end: str = "CANCELLED"):
        self.cancelled: list[str] = []
        self._looks, self._end = looks, end
        self.answers = True
        monkeypatch.setattr(slurm_engine, "cancel", self._cancel)
        monkeypatch.setattr(slurm_engine, "states", self._states)
        monkeypatch.setattr(slurm_engine, "_ASK_EVERY_S", 0.001)

    def _cancel(self, ids: list[str]) -> None:
        if not self.answers:
            raise QueueUnreachable("scancel: no route")
        self.cancelled += ids

    def _states(self, ids: list[str]) -> dict[str, JobState]:
        self._looks -= 1
        return dict.fromkeys(ids, JobState(self._end if self._looks <= 0 else "COMPLETING"))


def job(path: Path, number: int) -> Sent:
    cell: Any = SimpleNamespace(planned=SimpleNamespace(cell_id=f"cell{number}"))
    told = Submission(str(number), 0.0, 1, Demand(1, 1, 0, 1), str(path / "log"))
    return Sent(cell, CellFolder(path / f"cell{number}"), told, JobState("RUNNING"))


def finish(sent: Sent) -> None:
    name = sent.folder.path.name
    device = DeviceInfo("cpu", "a processor")
    rank = RankSummary(
        0, 0, 1, device, 1, 1, 4, 32, 1, None, None, None, None, None, None, 1.0, {}, 4, 1
    )
    result = CellResult(
        name, "config", name, 0, 1, 0.0, 1.0, 1, "single", "strong", 8, 8, (), (rank,)
    )
    sent.folder.save_result(result)


def soon() -> float:
    return time.monotonic() + 10


def test_every_job_is_cancelled_and_its_cell_interrupted_with_slurms_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, jobs = Cluster(monkeypatch, looks=3), [job(tmp_path, 1), job(tmp_path, 2)]
    outcomes = interrupt(jobs, soon(), pytest.fail)
    assert cluster.cancelled == ["1", "2"]
    assert {name: outcome.state for name, outcome in outcomes.items()} == {
        "cell1": "interrupted",
        "cell2": "interrupted",
    }
    for sent in jobs:
        (attempt,) = sent.folder.attempts()
        assert (attempt.cause, attempt.outcome) == ("interrupted", "interrupted")


def test_a_cell_that_was_done_in_time_keeps_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Cluster(monkeypatch)
    sent = job(tmp_path, 1)
    finish(sent)
    outcomes = interrupt([sent], soon(), pytest.fail)
    assert outcomes["cell1"].state == "done"
    assert list(sent.folder.attempts()) == []


def test_a_job_that_is_slow_to_end_counts_as_cancelled_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Cluster(monkeypatch, looks=10**9)
    sent = job(tmp_path, 1)
    interrupt([sent], time.monotonic() + 0.02, pytest.fail)
    (attempt,) = sent.folder.attempts()
    assert attempt.cause == "interrupted"


def test_where_slurm_does_not_answer_it_is_said_which_jobs_may_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, said = Cluster(monkeypatch), list[str]()
    cluster.answers = False
    jobs = [job(tmp_path, 1), job(tmp_path, 2)]
    outcomes = interrupt(jobs, soon(), said.append)
    assert said == ["the jobs may go on, SLURM does not answer (scancel: no route): scancel 1 2"]
    assert {outcome.state for outcome in outcomes.values()} == {"interrupted"}
    assert all(not list(sent.folder.attempts()) for sent in jobs), "nobody knows how they end"
