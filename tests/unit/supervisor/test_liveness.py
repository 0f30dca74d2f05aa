"""Hangs, by heartbeats and a steady clock; stopped ranks; kills for memory."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.settings import SETTINGS
from scalewise.host import is_stopped
from scalewise.records import CellFolder, HeartbeatWriter
from scalewise.supervisor.failures import name_memory_kill, name_stopped, name_uncaught
from scalewise.supervisor.job import Verdict
from scalewise.supervisor.supervisor import Liveness


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def said(verdict: Verdict | None) -> str | None:
    return None if verdict is None else verdict.message


def test_imports_are_no_hang_and_have_a_limit_of_their_own(tmp_path: Path) -> None:
    folder, clock = CellFolder(tmp_path), Clock()
    liveness = Liveness(folder, replace(SETTINGS, hang_timeout_s=5, start_timeout_s=60), clock)
    clock.now = 50
    assert liveness.hang([0, 1]) is None
    HeartbeatWriter(folder.heartbeat_path(0)).close()
    clock.now = 61
    assert said(liveness.hang([0, 1])) == (
        "rank 1 had not begun after 61 s (sweep.start_timeout_s=60); "
        "the stacks of all ranks are in logs/"
    )


def test_a_hang_is_counted_from_the_last_beat_of_any_rank(tmp_path: Path) -> None:
    folder, clock = CellFolder(tmp_path), Clock()
    ranks = [HeartbeatWriter(folder.heartbeat_path(rank)) for rank in (0, 1)]
    liveness = Liveness(folder, replace(SETTINGS, hang_timeout_s=5), clock)
    for step in range(4):
        ranks[1].beat(step, step)
        assert liveness.hang([0, 1]) is None
        clock.now += 4
    clock.now += 2
    verdict = liveness.hang([0, 1])
    assert verdict is not None
    assert verdict.cause == "hang"
    assert verdict.message.startswith("no rank made a step for 6 s (sweep.hang_timeout_s=5)")
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize("jump_s", [-7200.0, 7200.0])
def test_a_wall_clock_that_jumps_neither_makes_nor_hides_a_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    folder, clock = CellFolder(tmp_path), Clock()
    rank = HeartbeatWriter(folder.heartbeat_path(0))
    liveness = Liveness(folder, replace(SETTINGS, hang_timeout_s=5), clock)
    assert liveness.hang([0]) is None
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump_s)
    clock.now += 4
    rank.beat(1, 1)
    assert liveness.hang([0]) is None
    clock.now += 4
    assert liveness.hang([0]) is None
    clock.now += 2
    assert liveness.hang([0]) is not None
    rank.close()


@pytest.mark.parametrize(
    ("cause", "exit_code", "before", "now", "named"),
    [
        ("signal", -9, 3, 4, "oom"),
        ("signal", -9, 3, 3, "signal"),
        ("signal", -9, None, None, "signal"),
        ("exception", 1, 3, 4, "exception"),
    ],
)
def test_the_kernels_killer_is_told_from_other_senders_of_sigkill(
    cause: Any, exit_code: int, before: int | None, now: int | None, named: str
) -> None:
    verdict = Verdict(cause, "rank 1 ended", 1, exit_code)
    assert name_memory_kill(verdict, before, now).cause == named


@pytest.mark.parametrize(
    ("last", "code", "told"),
    [
        ("RuntimeError: DataLoader worker (pid 7) exited", 1, "rank 1: RuntimeError: DataLoader"),
        ("a warning: of a library", 1, "rank 1 exited"),
        ("ValueError: printed, and not the end", 3, "rank 1 exited"),
    ],
)
def test_an_exception_that_its_rank_could_not_report_is_named(
    tmp_path: Path, last: str, code: int, told: str
) -> None:
    folder = CellFolder(tmp_path)
    log = folder.log_path(1, "err")
    log.parent.mkdir(parents=True)
    log.write_text(f"Traceback (most recent call last):\n{last}\n")
    found = name_uncaught(Verdict("exit", "rank 1 exited with status 1", 1, code), folder)
    assert found.message.startswith(told)


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


def test_a_stopped_rank_is_named(sleeper: int) -> None:
    hang = Verdict("hang", "no rank made a step for 12 s", None, None)
    lost_peer = Verdict("exception", "rank 0: RuntimeError: Connection reset by peer", 0, 1)
    assert name_stopped(hang, lambda: {1: sleeper}) == hang
    os.kill(sleeper, signal.SIGSTOP)
    deadline = time.monotonic() + 5
    while not is_stopped(sleeper) and time.monotonic() < deadline:
        time.sleep(0.01)
    told = name_stopped(hang, lambda: {0: os.getpid(), 1: sleeper})
    assert told.message == f"rank 1 was stopped (SIGSTOP, or a debugger): {hang.message}"
    assert told.rank == 1
    assert name_stopped(lost_peer, lambda: {1: sleeper}) == lost_peer


def test_a_process_that_is_gone_is_not_stopped() -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    assert not is_stopped(process.pid)
