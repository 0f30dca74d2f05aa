"""Time that passed while somebody looked, for limits that must not run out unseen."""

from __future__ import annotations

import time
from collections.abc import Callable

LATEST_LOOK_S = 2.0
"""A supervisor looks about once a second."""


class LookedTime:
    """Seconds since the first look, of which a pause between two looks adds two at most.

    A supervisor that was stopped, as SLURM does with a whole job (``PreemptMode=SUSPEND``), cannot
    say that its ranks did nothing meanwhile: they were stopped too, or went on unseen.

    Args:
        clock: seconds, of a clock that nobody sets.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._passed_s = 0.0
        self._paused_at_s = 0.0
        self.pause_s = 0.0
        """How long the last pause was that did not count as a whole; 0 before the first."""

    def __call__(self) -> float:
        """Look."""
        now = self._clock()
        pause_s, self._last = now - self._last, now
        self._passed_s += min(pause_s, LATEST_LOOK_S)
        if pause_s > LATEST_LOOK_S:
            self.pause_s, self._paused_at_s = pause_s, self._passed_s
        return self._passed_s

    @property
    def since_pause_s(self) -> float:
        """Seconds counted since the end of that pause."""
        return self() - self._paused_at_s
