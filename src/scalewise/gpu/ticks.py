"""A steady beat for whoever samples."""

from __future__ import annotations

import time


class Ticks:
    """A steady beat: a missed one is counted and left out, so that lateness never adds up."""

    def __init__(self, interval_s: float) -> None:
        self.kept = self.missed = 0
        self._interval_s = interval_s
        self._next = time.monotonic() + interval_s

    def wait_s(self) -> float:
        """Seconds until the next beat, which is taken to be kept."""
        wait = self._next - time.monotonic()
        late = int(max(0.0, -wait) / self._interval_s)
        self.missed += late
        self.kept += 1
        self._next += (late + 1) * self._interval_s
        return max(0.0, wait)
