"""When to estimate anew what a sweep has left, while it runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scalewise.sweep.durations import Measured, Remaining
from scalewise.sweep.estimate import estimate, places


@dataclass
class Outlook:
    """A sweep's own look at its estimate: anew when something ended, every few seconds, and when
    half the time that was left has passed: a cell that is late must not count down to nothing."""

    every_s: float = 5.0
    _asked_at: float = -math.inf
    _asked_of: int = -1
    _answer: float | None = None

    def seconds_left(
        self,
        measured: Sequence[Measured],
        remaining: Callable[[], Sequence[Remaining]],
        slots: int | None,
        packed: bool,
    ) -> float | None:
        """As :func:`estimate`; between two looks the time that passed is taken off."""
        now = time.monotonic()
        valid_s = self.every_s if self._answer is None else min(self.every_s, self._answer / 2)
        if len(measured) != self._asked_of or now - self._asked_at >= valid_s:
            cells = remaining()
            found = estimate(measured, cells, *places(cells, slots, packed))
            self._answer = None if found is None else found.seconds_left
            self._asked_at, self._asked_of = now, len(measured)
        return None if self._answer is None else max(0.0, self._answer - (now - self._asked_at))
