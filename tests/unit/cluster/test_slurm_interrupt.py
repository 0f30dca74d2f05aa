"""Ctrl-C on a cluster: which jobs are cancelled, and what their cells are said to be."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalewise.cluster import slurm_executor
from scalewise.cluster.hosts import ClusterDemand
from scalewise.cluster.slurm import JobState, QueueUnreachable, SlurmConfig
from scalewise.cluster.slurm_executor import SlurmCell, SlurmExecutor, Submission
from scalewise.records import CellFolder


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
    assert interrupt([*jobs, not_sent], wait_s) == []
    assert cluster.cancelled == ["1", "2"]
    for sent in jobs:
        (attempt,) = sent.folder.attempts()
        assert (attempt.cause, attempt.outcome) == ("interrupted", "interrupted")


def test_a_cell_that_was_done_in_time_keeps_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
