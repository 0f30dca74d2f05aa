"""When a sweep will have ended: the mean time of ended cells times what is left. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Remaining(NamedTuple):
    """A cell without a result."""

    config_id: str
    width: int
    """Number of devices."""
    elapsed_s: float | None = None
    """Since its supervisor started; None if it does not run."""
    steps_left_s: float | None = None
    """Until its last step at the pace of its heartbeats; None if they do not tell."""


class Durations:
    """Mean seconds of the ended cells of each configuration, and of all."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[int, float]] = {}
        self._all = (0, 0.0)

    def add(self, config_id: str, seconds: float) -> None:
        """A cell has ended with a result."""
        count, total = self._sums.get(config_id, (0, 0.0))
        self._sums[config_id] = (count + 1, total + seconds)
        self._all = (self._all[0] + 1, self._all[1] + seconds)

    def of(self, config_id: str) -> float | None:
        """Mean of the configuration's cells, else of all; None before the first has ended."""
        count, total = self._sums.get(config_id, self._all)
        return total / count if count else None

    def seconds_left(
        self, remaining: Sequence[Remaining], slots: int | None, packed: bool
    ) -> float | None:
        """Until the last of ``remaining`` has ended; None while nothing tells.

        Args:
            slots: devices of the one host; None on a cluster, which is taken to run as many cells
                side by side as now.
            packed: cells run side by side: device-time over devices, and at least the longest.
        """
        if not remaining:
            return 0.0
        known = self if self._all[0] else _first_steps(remaining)
        left = [_left_of(cell, known.of(cell.config_id)) for cell in remaining]
        times = [seconds for seconds in left if seconds is not None]
        if len(times) < len(left):
            return None
        if slots is not None and not packed:
            return sum(times)
        if slots is None:
            running = sum(cell.width for cell in remaining if cell.elapsed_s is not None)
            slots = max(running, *(cell.width for cell in remaining))
        work_s = sum(s * cell.width for s, cell in zip(times, remaining, strict=True))
        return max(work_s / slots, *times)


def _first_steps(remaining: Sequence[Remaining]) -> Durations:
    """What running cells will take by their own steps, before the first one has ended."""
    found = Durations()
    for cell in remaining:
        if cell.elapsed_s is not None and cell.steps_left_s is not None:
            found.add(cell.config_id, cell.elapsed_s + cell.steps_left_s)
    return found


def _left_of(cell: Remaining, mean_s: float | None) -> float | None:
    if cell.elapsed_s is None:
        return mean_s
    if cell.steps_left_s is not None:
        return cell.steps_left_s
    return None if mean_s is None else max(mean_s - cell.elapsed_s, 0.0)
