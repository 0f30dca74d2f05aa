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
from scalewise.sweep.suspended import Suspensions, name_suspended

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


def test_a_pause_between_two_looks_is_hardly_counted(clock: Clock, looked: LookedTime) -> None:
    look(clock, looked, 10)
    clock.now += 3600
    assert looked() == pytest.approx(10 + LATEST_LOOK_S)
    assert look(clock, looked, 5) == pytest.approx(15 + LATEST_LOOK_S)


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
def test_ranks_that_gave_up_after_a_suspension_are_not_to_blame(verdict: Verdict) -> None:
    told = name_suspended(verdict, 400, limit_s=300)
    assert (told.cause, told.rank) == ("hang", None)
    assert told.message == (
        "the cell was suspended for 400 s, and its ranks wait for each other no longer than "
        "sweep.collective_timeout_s=300: raise that above the longest suspension "
        f"({verdict.message})"
    )


def test_any_other_end_keeps_its_reason() -> None:
    assert name_suspended(HANG, 200, limit_s=300) == HANG, "not suspended for so long"
    own = Verdict("exception", "rank 0: ValueError: x", 0, 1)
    assert name_suspended(own, 400, limit_s=300) == own, "an error of its own"


class Cell:
    """Two ranks and their supervisor, which looks once a second."""

    def __init__(self, path: Path, clock: Clock) -> None:
        folder = CellFolder(path)
        self.clock = clock
        self.ranks = [HeartbeatWriter(folder.heartbeat_path(rank)) for rank in (0, 1)]
        self.suspensions = Suspensions(folder, (0, 1), clock)
        self.suspensions.begin()
        self.step = 500
        for rank in self.ranks:
            rank.begin(None, self.step)  # it goes on from a checkpoint: it made none of these

    def train(self, seconds: int, steps_each_s: int = 10) -> None:
        for _ in range(seconds):
            self.pause(1.0, steps_each_s)

    def pause(self, seconds: float, steps: int) -> None:
        """The supervisor looks once after so long, and the ranks make steps meanwhile."""
        self.clock.now += seconds
        self.step += steps
        for rank in self.ranks:
            rank.beat(self.step, self.step)
        self.suspensions.look()


@pytest.fixture
def cell(tmp_path: Path, clock: Clock) -> Iterator[Cell]:
    cell = Cell(tmp_path, clock)
    yield cell
    for rank in cell.ranks:
        rank.close()


def test_a_suspension_is_no_time_that_a_cell_ran(cell: Cell) -> None:
    cell.train(20)
    cell.pause(3600, steps=15)  # made just before it and after it
    cell.train(10)
    assert cell.suspensions.ran_s() == pytest.approx(30)
    assert cell.suspensions.longest_lately_s() == pytest.approx(3600)


def test_what_a_suspension_does_to_ranks_shows_within_a_minute(cell: Cell) -> None:
    cell.pause(400, steps=0)
    cell.train(59)
    assert cell.suspensions.longest_lately_s() == pytest.approx(400)
    cell.train(2)
    assert cell.suspensions.longest_lately_s() == 0


@pytest.mark.parametrize("later_s", [2.5, 100.0])
def test_a_later_pause_does_not_hide_a_longer_one(cell: Cell, later_s: float) -> None:
    cell.train(20)
    cell.pause(1800, steps=0)
    cell.train(3, steps_each_s=0)
    cell.pause(later_s, steps=0)
    told = name_suspended(LOST_PEER, cell.suspensions.longest_lately_s(), limit_s=300)
    assert told.message.startswith("the cell was suspended for 1800 s")


@pytest.mark.parametrize("steps_each_s", [1, 10])
def test_a_supervisor_that_was_paused_alone_does_not_hide_who_failed(
    cell: Cell, steps_each_s: int
) -> None:
    cell.train(20, steps_each_s)
    cell.pause(400, steps=400 * steps_each_s)
    cell.train(40, steps_each_s)
    lost = replace(LOST_PEER, rank=1)
    assert name_suspended(lost, cell.suspensions.longest_lately_s(), limit_s=300) == lost
    assert cell.suspensions.ran_s() == pytest.approx(460)


def test_a_crowded_supervisor_that_looks_late_saw_no_suspension(cell: Cell) -> None:
    for _ in range(100):
        cell.pause(4.0, steps=0)
    assert cell.suspensions.ran_s() == pytest.approx(400)
    assert cell.suspensions.longest_lately_s() == 0


def test_time_in_which_nobody_meant_to_look_is_no_suspension(cell: Cell) -> None:
    cell.clock.now += 120  # ranks that start again, a checkpoint that is copied
    cell.suspensions.begin()
    cell.train(5)
    assert cell.suspensions.ran_s() == pytest.approx(125)
    assert cell.suspensions.longest_lately_s() == 0


def test_a_cell_that_a_suspension_ended_is_tried_again() -> None:
    hung = Attempt(1, "failed", "hang", "no rank made a step for 12 s", None, None, (), 0.0, 1.0)
    assert mendable(hung) is None
    assert mendable(replace(hung, message=f"{SUSPENDED} for 400 s, and ...")) == SUSPENDED
