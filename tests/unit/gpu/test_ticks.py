"""Beats that a busy host missed, and those in which the sampler itself stood still."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scalewise.gpu import ticks as ticks_module
from scalewise.gpu.sampler import DeviceSampler
from scalewise.gpu.ticks import Ticks, thread_ready_s
from scalewise.records import CellFolder

INTERVAL_S = 0.5
LATE_S = 4.0


class Clock:
    """Monotonic time and the thread's time without a core, moved by who waits and who reads."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.ready_s: float | None = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def ready(self) -> float | None:
        return self.ready_s


class Stop(threading.Event):
    """Its third sleep takes longer than asked for."""

    def __init__(self, clock: Clock, late_s: float, ready_s: float | None) -> None:
        super().__init__()
        self._clock, self._late_s, self._late_ready_s = clock, late_s, ready_s
        self._waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self._waits += 1
        self._clock.now_s += timeout or 0.0
        if self._waits == 3:
            self._clock.now_s += self._late_s
            if self._clock.ready_s is not None and self._late_ready_s is not None:
                self._clock.ready_s += self._late_ready_s
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    monkeypatch.setattr(ticks_module.time, "monotonic", one.monotonic)
    return one


def beats(clock: Clock, stop: Stop, read: Callable[[], None] = lambda: None) -> Ticks:
    ticks = Ticks(INTERVAL_S, clock.ready)
    for _ in range(10):
        ticks.wait(stop)
        read()
    return ticks


def test_a_sampler_that_stood_still_missed_nothing(clock: Clock) -> None:
    ticks = beats(clock, Stop(clock, LATE_S, ready_s=0.002))
    assert (ticks.missed, ticks.kept) == (0, 10)
    assert ticks.stood_still_s == pytest.approx(LATE_S)
    assert clock.now_s == pytest.approx(10 * INTERVAL_S + LATE_S)  # and keeps the beat


def test_one_that_had_no_core_did_not_stand_still(clock: Clock) -> None:
    ticks = beats(clock, Stop(clock, LATE_S, ready_s=0.9 * LATE_S))
    assert (ticks.missed, ticks.stood_still_s) == (7, 0.0)


def test_nor_is_it_said_where_nobody_counts_that(clock: Clock) -> None:
    clock.ready_s = None
    ticks = beats(clock, Stop(clock, LATE_S, ready_s=None))
    assert (ticks.missed, ticks.stood_still_s) == (7, 0.0)


def test_a_driver_that_takes_long_is_no_standstill(clock: Clock) -> None:
    slow = iter([0.0, LATE_S] + 8 * [0.0])

    def read() -> None:
        clock.now_s += next(slow)

    ticks = beats(clock, Stop(clock, 0.0, ready_s=0.0), read)
    assert (ticks.missed, ticks.stood_still_s) == (7, 0.0)


_SAMPLER = """
import os, sys
from pathlib import Path
from scalewise.gpu.sampler import DeviceSampler
from scalewise.records import CellFolder
with DeviceSampler(CellFolder(Path(sys.argv[1])), {}, lambda: {0: os.getpid()}, 0.4) as sampler:
    print("sampling", flush=True)
    sys.stdin.read()
print(*sampler.problems, sep="\\n")
"""


@pytest.mark.skipif(thread_ready_s() is None, reason="the kernel does not count run-queue delays")
def test_a_stopped_sampler_does_not_blame_the_host(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _SAMPLER, str(tmp_path)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "sampling\n"
        time.sleep(1.0)  # between two beats: two and a half of them
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(2.5)
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.5)
        said, _ = process.communicate("")
    assert "the sampler itself stood still" in said
    assert "nothing was sampled for 2." in said


def test_a_busy_host_is_told_apart_from_it(tmp_path: Path) -> None:
    sampler = DeviceSampler(CellFolder(tmp_path), {}, dict, interval_s=0.1)
    ticks = Ticks(1.0)
    ticks.kept, ticks.missed, ticks.stood_still_s = 26, 2, 4.0
    sampler._tell_missed(ticks)
    assert sampler.problems == [
        "nothing was sampled for 4.0 s: the sampler itself stood still (stopped or frozen, as the "
        "processes of a suspended cell are)",
        "2 of 28 samples were missed: the host was too busy or the driver too slow",
    ]
