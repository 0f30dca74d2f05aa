"""Whether the ranks of a cell still do anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from scalewise.policies import SweepConfig
from scalewise.records import CellFolder, read_heartbeat
from scalewise.sweep.blame import Verdict


class Liveness:
    """Reads the heartbeats of a cell's ranks.

    Ages are taken from a clock that nobody sets: a wall clock that jumps (NTP, a resumed laptop)
    neither makes a hang nor hides one.

    Args:
        folder: the cell's.
        config: its time-outs.
        clock: seconds.
    """

    def __init__(
        self,
        folder: CellFolder,
        config: SweepConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._config = config
        self._clock = clock
        self._began = self._seen_at = clock()
        self._last: dict[int, tuple[int, float]] = {}

    def hang(self, alive: Sequence[int]) -> Verdict | None:
        """Why the living ranks count as hung; None while they do not."""
        now = self._clock()
        beats = {rank: read_heartbeat(self._folder.heartbeat_path(rank)) for rank in alive}
        silent = [rank for rank, beat in beats.items() if beat is None]
        if silent:
            age_s = now - self._began
            return None if age_s <= self._config.start_timeout_s else self._not_begun(silent, age_s)
        last = {rank: (beat.step, beat.time) for rank, beat in beats.items() if beat is not None}
        if last != self._last:
            self._last, self._seen_at = last, now
        idle_s = now - self._seen_at
        return None if idle_s <= self._config.hang_timeout_s else self._stuck(idle_s)

    def _not_begun(self, silent: Sequence[int], age_s: float) -> Verdict:
        return _hung(
            f"rank {', '.join(map(str, silent))} had not begun after {age_s:.0f} s "
            f"(sweep.start_timeout_s={self._config.start_timeout_s:g})"
        )

    def _stuck(self, idle_s: float) -> Verdict:
        return _hung(
            f"no rank made a step for {idle_s:.0f} s "
            f"(sweep.hang_timeout_s={self._config.hang_timeout_s:g})"
        )


def _hung(what: str) -> Verdict:
    return Verdict("hang", f"{what}; the stacks of all ranks are in logs/", None, None)
