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

    def __call__(self) -> float:
        """Look."""
        now = self._clock()
        pause_s, self._last = now - self._last, now
        self._passed_s += min(pause_s, LATEST_LOOK_S)
        return self._passed_s
