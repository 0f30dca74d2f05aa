"""A process that stood still is told from one that waited for its turn."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from scalewise.measure.pulse import INTERVAL_NS, Beat, Pulse, WatchedStepWriter, standstill_between
from scalewise.records import STEP_DTYPE, STOOD_STILL, WARMUP, Standstill, read_steps

MS = 1_000_000
S = 1000 * MS
LOCK_NS = 5 * MS
BEFORE = Beat(at_ns=70 * S, ready_ns=3 * S, turns=1000)


def beat(late_ns: int, ready_ns: int, turns: int) -> Beat:
    """The wake-up after ``BEFORE``."""
    return Beat(
        BEFORE.at_ns + INTERVAL_NS + late_ns, BEFORE.ready_ns + ready_ns, BEFORE.turns + turns
    )


@pytest.mark.parametrize(
    ("late_ns", "ready_ns", "turns"),
    [
        pytest.param(3150 * MS, 2 * MS, 5, id="stopped for 3.4 s"),
        pytest.param(3220 * MS, 0, 2, id="stopped while idle"),
        pytest.param(20 * S, 3 * S, 400, id="stopped, then late by a crowd and the lock"),
    ],
)
def test_a_late_wake_up_that_nothing_accounts_for_is_a_standstill(
    late_ns: int, ready_ns: int, turns: int
) -> None:
    found = standstill_between(BEFORE, beat(late_ns, ready_ns, turns), LOCK_NS)
    assert found is not None
    assert found.seconds == pytest.approx(late_ns / S)
    assert found.until_ns == BEFORE.at_ns + INTERVAL_NS + late_ns


@pytest.mark.parametrize(
    ("late_ns", "ready_ns", "turns"),
    [
        pytest.param(0, 0, 1, id="in time"),
        pytest.param(900 * MS, 0, 1, id="too short to be told"),
        # Recorded: a library that held the lock for 4 s, 40 processes on 2 cores at a higher
        # priority, and both at once.
        pytest.param(3750 * MS, 40 * MS, 778, id="the interpreter's lock"),
        pytest.param(1800 * MS, 1800 * MS, 1, id="no core"),
        pytest.param(2560 * MS, 940 * MS, 322, id="the holder of the lock had no core"),
    ],
)
def test_what_the_kernel_accounts_for_is_none(late_ns: int, ready_ns: int, turns: int) -> None:
    assert standstill_between(BEFORE, beat(late_ns, ready_ns, turns), LOCK_NS) is None


@pytest.mark.parametrize(
    ("late_ns", "turns", "is_found"),
    [
        pytest.param(2750 * MS, 2, True, id="stopped for 3 s"),
        pytest.param(3750 * MS, 5, False, id="the lock, asked for three times"),
        pytest.param(1250 * MS, 3, False, id="the lock, asked for once"),
    ],
)
def test_where_the_lock_is_asked_for_once_a_second_two_turns_are_no_wait(
    late_ns: int, turns: int, is_found: bool
) -> None:
    found = standstill_between(BEFORE, beat(late_ns, 0, turns), lock_ns=1 * S)
    assert (found is not None) is is_found


def test_a_wait_for_the_lock_that_is_shorter_than_one_asking_cannot_be_told() -> None:
    assert standstill_between(BEFORE, beat(3 * S, 0, 2), lock_ns=10 * S) is None


WATCHED = """
import ctypes, sys, time
from scalewise.measure.pulse import Pulse
sys.setswitchinterval(float(sys.argv[2]))
pulse = Pulse()
print("ready", flush=True)
sys.stdin.readline()
if sys.argv[1] == "lock":
    ctypes.PyDLL(None).usleep(2_000_000)  # keeps Python's lock, unlike CDLL
print(*(one.seconds for one in pulse.standstills()))
"""


def watched(mode: str, stopped_s: float, lock_s: float = 0.005) -> list[float]:
    """Standstills in seconds that a process of its own finds, as it is stopped for so long."""
    with subprocess.Popen(
        [sys.executable, "-c", WATCHED, mode, str(lock_s)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if stopped_s:
            process.send_signal(signal.SIGSTOP)
            time.sleep(stopped_s)
            process.send_signal(signal.SIGCONT)
        process.stdin.write("go on\n")
        process.stdin.flush()
        return [float(word) for word in process.stdout.read().split()]


def test_a_stopped_process_knows_at_once_for_how_long() -> None:
    """It asks as soon as it goes on, perhaps before the watching thread has woken."""
    (seconds,) = watched("plain", stopped_s=2.0)
    assert 2.0 - INTERVAL_NS / S - 0.1 < seconds < 3.0


def test_a_process_whose_threads_swap_once_a_second_knows_too() -> None:
    (seconds,) = watched("plain", stopped_s=3.0, lock_s=1.0)
    assert 3.0 - INTERVAL_NS / S - 0.1 < seconds < 4.0


@pytest.mark.parametrize("lock_s", [0.005, 1.0])
def test_a_library_that_keeps_the_interpreter_is_no_standstill(lock_s: float) -> None:
    assert watched("lock", stopped_s=0, lock_s=lock_s) == []


def test_without_the_kernels_counts_nothing_is_watched_and_that_is_said(tmp_path: Path) -> None:
    pulse = Pulse(tmp_path / "schedstat")
    assert pulse.missing is not None and "No such file" in pulse.missing
    assert pulse.standstills() == ()
    pulse.stop()
    (tmp_path / "schedstat").write_text("7\n")
    assert "schedstat" in (Pulse(tmp_path / "schedstat").missing or "")


def test_steps_are_flagged_in_which_it_stood_still(tmp_path: Path) -> None:
    rows = np.zeros(4, STEP_DTYPE)
    rows["step"] = np.arange(4)
    rows["start_ns"] = [0, 1 * S, 2 * S, 12 * S]
    rows["host_step_ms"] = [1000, 1000, 10_000, 1000]
    rows["flags"][2] = WARMUP
    writer = WatchedStepWriter(tmp_path / "rank0.bin", lambda: [Standstill(3 * S, 11 * S)])
    writer.append_rows(rows)
    writer.close()
    kept = read_steps(tmp_path / "rank0.bin", 0).rows
    assert kept["flags"].tolist() == [0, 0, WARMUP | STOOD_STILL, 0]
