"""Limits that do not run out while a cell is suspended, and what is said of one that was."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scalewise.policies import SweepConfig
from scalewise.records import Attempt, CellFolder, HeartbeatWriter
from scalewise.sweep.blame import Verdict
from scalewise.sweep.liveness import Liveness
from scalewise.sweep.looked_time import LATEST_LOOK_S, LookedTime
from scalewise.sweep.retry import SUSPENDED, mendable
from scalewise.sweep.stopped import name_stopped, process_state
from scalewise.sweep.suspended import name_suspended

HANG = Verdict("hang", "no rank made a step for 12 s", None, None)
LOST_PEER = Verdict("exception", "rank 0: RuntimeError: Connection reset by peer", 0, 1)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def looked(clock: Clock) -> LookedTime:
    return LookedTime(clock)


def look(clock: Clock, looked: LookedTime, seconds: float, every_s: float = 1.0) -> float:
    until = clock.now + seconds
    while clock.now < until:
        clock.now += every_s
        looked()
    return looked()


def test_time_passes_while_somebody_looks(clock: Clock, looked: LookedTime) -> None:
    assert look(clock, looked, 30) == pytest.approx(30)
    assert looked.pause_s == 0


def test_a_pause_between_two_looks_is_hardly_counted(clock: Clock, looked: LookedTime) -> None:
    look(clock, looked, 10)
    clock.now += 3600
    assert looked() == pytest.approx(10 + LATEST_LOOK_S)
    assert looked.pause_s == pytest.approx(3600)
    look(clock, looked, 5)
    assert looked.since_pause_s == pytest.approx(5)


def test_a_crowded_supervisor_that_looks_late_still_ends_what_hangs(
    clock: Clock, looked: LookedTime
) -> None:
    assert look(clock, looked, 600, every_s=4.0) > 200


def test_a_cell_that_was_suspended_does_not_hang_and_one_that_goes_on_hanging_does(
    tmp_path: Path, clock: Clock, looked: LookedTime
) -> None:
    folder = CellFolder(tmp_path)
    rank = HeartbeatWriter(folder.heartbeat_path(0))
    rank.beat(7, 7)
    liveness = Liveness(folder, SweepConfig(hang_timeout_s=10), looked)
    assert liveness.hang([0]) is None
    clock.now += 3600
    for _ in range(8):
        assert liveness.hang([0]) is None
        clock.now += 1
    clock.now += 2
    verdict = liveness.hang([0])
    assert verdict is not None
    assert verdict.message.startswith("no rank made a step for 11 s (sweep.hang_timeout_s=10)")
    rank.close()


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


def test_a_stopped_rank_is_named(sleeper: int) -> None:
    assert name_stopped(HANG, lambda: {1: sleeper}) == HANG
    os.kill(sleeper, signal.SIGSTOP)
    deadline = time.monotonic() + 5
    while process_state(sleeper) != "T" and time.monotonic() < deadline:
        time.sleep(0.01)
    told = name_stopped(HANG, lambda: {0: os.getpid(), 1: sleeper})
    assert told.message == f"rank 1 was stopped (SIGSTOP, or a debugger): {HANG.message}"
    assert told.rank == 1
    assert name_stopped(LOST_PEER, lambda: {1: sleeper}) == LOST_PEER


def test_a_process_that_is_gone_has_no_state() -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    assert process_state(process.pid) == ""


@pytest.mark.parametrize("verdict", [HANG, LOST_PEER])
def test_ranks_that_gave_up_after_a_suspension_are_not_to_blame(
    clock: Clock, looked: LookedTime, verdict: Verdict
) -> None:
    clock.now += 400
    looked()
    told = name_suspended(verdict, looked, limit_s=300)
    assert (told.cause, told.rank) == ("hang", None)
    assert told.message == (
        "the cell was suspended for 400 s, and its ranks wait for each other no longer than "
        "sweep.collective_timeout_s=300: raise that above the longest suspension "
        f"({verdict.message})"
    )


def test_any_other_end_keeps_its_reason(clock: Clock, looked: LookedTime) -> None:
    look(clock, looked, 400)
    assert name_suspended(HANG, looked, limit_s=300) == HANG, "it was not suspended"
    clock.now += 200
    looked()
    assert name_suspended(HANG, looked, limit_s=300) == HANG, "not for so long"
    clock.now += 400
    looked()
    own = Verdict("exception", "rank 0: ValueError: x", 0, 1)
    assert name_suspended(own, looked, limit_s=300) == own, "an error of its own"
    look(clock, looked, 90)
    assert name_suspended(HANG, looked, limit_s=300) == HANG, "long after it"


def test_a_cell_that_a_suspension_ended_is_tried_again() -> None:
    hung = Attempt(1, "failed", "hang", "no rank made a step for 12 s", None, None, (), 0.0, 1.0)
    assert mendable(hung) is None
    assert mendable(replace(hung, message=f"{SUSPENDED} for 400 s, and ...")) == SUSPENDED
