"""When this process stood still: stopped by a signal, or frozen with its container or its host.

A thread sleeps for a quarter of a second at a time and does nothing else. It may wake late for
three reasons, which the kernel's own counts of that thread tell apart:

- Another thread holds Python's lock: it asks for it every 5 ms, and is put on a core each time
  (685 times in 4 s, measured).
- Other processes hold the cores: it is ready to run all the while, and the kernel counts that.
- It stood still: neither (2 to 5 times in 3.4 s, 2 ms ready).

So a crowded host and a library that keeps the interpreter for seconds are no standstill. A host
that sleeps is none either: its monotonic clock, by which steps are timed, sleeps too.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from scalewise.records import STOOD_STILL, Standstill, StepWriter

INTERVAL_NS = 250_000_000
LEAST_NS = 1_000_000_000
"""A shorter one is not told from other hiccups of a host."""
_OWN_TURNS = 2
"""Of any late wake-up, whatever it waited for: at its due time, and when it goes on."""
_ACCOUNTED_SHARE = 0.5
"""Of a late wake-up: if the kernel accounts for more of it, the process did not stand still."""
_PATIENCE_S = 1.0
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


@dataclass(frozen=True)
class Beat:
    """One wake-up of the thread."""

    at_ns: int
    """``perf_counter_ns``."""
    ready_ns: int
    """Time in which it was ready to run and had no core, since it began."""
    turns: int
    """Times it was put on a core, since it began."""


def standstill_between(before: Beat, after: Beat, lock_ns: int) -> Standstill | None:
    """The standstill that made ``after`` late; None where it is not, or something else did.

    Args:
        before: the wake-up before, after which it slept for ``INTERVAL_NS``.
        after: the next one.
        lock_ns: how often a thread that waits for the interpreter asks for it.
    """
    due_ns = before.at_ns + INTERVAL_NS
    late_ns = after.at_ns - due_ns
    asked = max(0, after.turns - before.turns - _OWN_TURNS)
    accounted_ns = after.ready_ns - before.ready_ns + asked * lock_ns
    # A wait for the lock that is shorter than one asking leaves no trace in the turns.
    if late_ns < max(LEAST_NS, lock_ns) or accounted_ns > _ACCOUNTED_SHARE * late_ns:
        return None
    return Standstill(due_ns, after.at_ns)


class Pulse:
    """Watches from a thread of its own until :meth:`stop`.

    Args:
        path: the ``schedstat`` of the calling thread: time on a core, time ready and without one
            (both in ns), and how often it was put on one.
    """

    def __init__(self, path: Path = _SCHEDSTAT) -> None:
        self.missing = _fault(path)
        """Why nothing is watched; None where it is."""
        self._path = path
        self._found: tuple[Standstill, ...] = ()
        self._beat_ns = time.perf_counter_ns()
        self._beaten = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scalewise-pulse", daemon=True)
        if self.missing is None:
            self._thread.start()

    def standstills(self) -> tuple[Standstill, ...]:
        """All that have ended by now, in their order."""
        with self._beaten:
            # Who asks may have woken before the thread has: what it is about to say counts.
            self._beaten.wait_for(self._is_up_to_date, _PATIENCE_S)
            return self._found

    def stop(self) -> None:
        """No more is watched; what was found stays."""
        self._stopping.set()
        if self.missing is None:
            self._thread.join()

    def _is_up_to_date(self) -> bool:
        late = time.perf_counter_ns() - self._beat_ns > 2 * INTERVAL_NS
        return not late or not self._thread.is_alive()

    def _run(self) -> None:
        # Opened once, here: it stays the file of this thread, and is counted anew at each reading.
        with self._path.open("rb", buffering=0) as schedstat:
            self._watch(lambda: _beat(os.pread(schedstat.fileno(), 100, 0)))

    def _watch(self, read: Callable[[], Beat]) -> None:
        before, stopping = read(), False
        while not stopping:
            stopping = self._stopping.wait(INTERVAL_NS / 1e9)
            after = read()
            found = standstill_between(before, after, int(sys.getswitchinterval() * 1e9))
            with self._beaten:
                if found is not None:
                    self._found = (*self._found, found)
                self._beat_ns = after.at_ns
                self._beaten.notify_all()
            before = after


def _beat(schedstat: bytes) -> Beat:
    fields = schedstat.split()
    return Beat(time.perf_counter_ns(), int(fields[1]), int(fields[2]))


def _fault(path: Path) -> str | None:
    """Why the kernel's counts cannot be had; None where they can."""
    try:
        _beat(path.read_bytes())
    except (OSError, ValueError, IndexError) as error:
        return f"{path}: {error or 'not in the format expected'}"
    return None


class WatchedStepWriter(StepWriter):
    """Flags the steps in which the process stood still.

    Args:
        path: of the steps.
        standstills: all until now.
    """

    def __init__(self, path: Path, standstills: Callable[[], Sequence[Standstill]]) -> None:
        super().__init__(path)
        self._standstills = standstills

    def append_rows(self, rows: npt.NDArray[np.void]) -> None:
        """As that of every writer. These steps are over, so that their standstills are known."""
        ends_ns = rows["start_ns"] + rows["host_step_ms"].astype(np.float64) * 1e6
        for one in self._standstills():
            within = (rows["start_ns"] < one.until_ns) & (ends_ns > one.since_ns)
            rows["flags"][within] |= STOOD_STILL
        super().append_rows(rows)
