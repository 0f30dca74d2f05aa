"""When to estimate anew what a sweep has left, while it runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scalewise.sweep.durations import Measured, Remaining
from scalewise.sweep.estimate import estimate, places

_REST = 20.0
"""An estimate that took a second is good for so many: cells start and end in the same process."""


@dataclass
class Outlook:
    """A sweep's own look at its estimate: anew when something ended, every few seconds, and when
    half the time that was left has passed: a cell that is late must not count down to nothing.

    Of very many cells an estimate takes long: then less often, and the last one stands meanwhile.
    """

    every_s: float = 5.0
    _asked_at: float = -math.inf
    _asked_of: int = -1
    _cost_s: float = 0.0
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
        age_s = now - self._asked_at
        valid_s = self.every_s if self._answer is None else min(self.every_s, self._answer / 2)
        is_due = len(measured) != self._asked_of or age_s >= valid_s
        if is_due and age_s >= _REST * self._cost_s:
            cells = remaining()
            found = estimate(measured, cells, *places(cells, slots, packed))
            self._answer = None if found is None else found.seconds_left
            self._asked_at, self._asked_of = now, len(measured)
            self._cost_s = time.monotonic() - now
        if self._answer is None:
            return None
        return max(self._answer / 2, self._answer - (now - self._asked_at))
