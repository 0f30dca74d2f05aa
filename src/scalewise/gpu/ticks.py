"""A steady beat for whoever samples."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

STILL_LEAST_S = 1.0
"""A shorter lateness is not told from other hiccups of a host."""
_READY_SHARE = 0.5
"""Of a late wake-up: if the thread was ready for more of it and had no core, the host was busy."""
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


def thread_ready_s() -> float | None:
    """Seconds the calling thread was ready to run and had no core; None where nobody counts."""
    try:
        return int(_SCHEDSTAT.read_bytes().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


class Ticks:
    """A steady beat: a missed one is counted and left out, so that lateness never adds up.

    Args:
        interval_s: between two beats.
        ready_s: of the thread that waits; see :func:`thread_ready_s`.
    """

    def __init__(
        self, interval_s: float, ready_s: Callable[[], float | None] = thread_ready_s
    ) -> None:
        self.kept = self.missed = 0
        self.stood_still_s = 0.0
        """In which the thread slept on though it was due and a core was free: it was stopped, or
        frozen with its cell. Beats in that time are not missed."""
        self._interval_s = interval_s
        self._ready_s = ready_s
        self._next = time.monotonic() + interval_s

    def set_interval(self, interval_s: float) -> None:
        if interval_s != self._interval_s:
            self._interval_s = interval_s
            self._next = time.monotonic()

    def wait_s(self) -> float:
        """Seconds until the next beat, which is taken to be kept."""
        wait = self._next - time.monotonic()
        late = int(max(0.0, -wait) / self._interval_s)
        self.missed += late
        self.kept += 1
        self._next += (late + 1) * self._interval_s
        return max(0.0, wait)

    def wait(self, stop: threading.Event) -> bool:
        """Sleep until the next beat or until ``stop``; whether that is set.

        A standstill is seen in this sleep only: one that falls into a reading looks like a driver
        that takes long.
        """
        wait_s, ready_s = self.wait_s(), self._ready_s()
        due = time.monotonic() + wait_s
        stopped = stop.wait(wait_s)
        self._leave_out_standstill(time.monotonic() - due, ready_s)
        return stopped

    def _leave_out_standstill(self, late_s: float, ready_before_s: float | None) -> None:
        if late_s < STILL_LEAST_S:
            return
        ready_s = self._ready_s()
        if ready_s is None or ready_before_s is None:
            return
        if ready_s - ready_before_s <= _READY_SHARE * late_s:
            self.stood_still_s += late_s
            self._next += int(late_s / self._interval_s) * self._interval_s
