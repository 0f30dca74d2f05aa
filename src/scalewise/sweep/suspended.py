"""Cells that were suspended: for how long, and whether their ranks gave up on each other for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from scalewise.records import CellFolder, RecordError, read_heartbeat
from scalewise.sweep.blame import Verdict
from scalewise.sweep.looked_time import LATEST_LOOK_S
from scalewise.sweep.retry import NO_PEER, SUSPENDED, transient

_LEAST_S = 5.0
"""On a crowded host a supervisor looks late by seconds, and nothing was suspended."""
_LOOKS = 3
"""Steps of so many looks are made beside a suspension: before it and after it."""
_GIVE_UP_WITHIN_S = 60.0
"""Ranks find out within seconds of going on; NCCL's watchdog is the slowest."""

_MESSAGE = (
    f"{SUSPENDED} for {{suspended_s:.0f}} s, and its ranks wait for each other no longer than "
    "sweep.collective_timeout_s={limit_s:g}: raise that above the longest suspension ({said})"
)


class Suspensions:
    """When a whole cell stood still: its supervisor looked late, and no rank had gone on.

    The last beat alone does not tell: ranks that go on make steps before their supervisor looks.
    Those of a supervisor that was paused by itself have made more than a few looks' worth.

    Args:
        folder: the cell's.
        ranks: of this host.
        clock: seconds, of a clock that nobody sets.
    """

    def __init__(
        self,
        folder: CellFolder,
        ranks: Sequence[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._ranks = ranks
        self._clock = clock
        self._began = self._last = clock()
        self._steps: Mapping[int, int] = {}
        self._most_steps = 1
        """That a rank made between two looks in time."""
        self._total_s = 0.0
        self._lately: list[tuple[float, float]] = []
        """Of each suspension: when it ended, by :meth:`ran_s`, and its seconds."""

    def begin(self) -> None:
        """Somebody looks from now on: the time before is no suspension."""
        self._last, self._steps = self._clock(), self._steps_by_now()

    def look(self) -> None:
        """About once a second, at once after waking: ranks that go on make steps meanwhile."""
        now = self._clock()
        pause_s, self._last = now - self._last, now
        before, self._steps = self._steps, self._steps_by_now()
        made = max((n - before.get(rank, 0) for rank, n in self._steps.items()), default=0)
        if pause_s <= LATEST_LOOK_S:
            self._most_steps = max(self._most_steps, made)
        elif pause_s > _LEAST_S and made <= _LOOKS * self._most_steps:
            self._total_s += pause_s
            self._lately = [*self._still_felt(), (self.ran_s(), pause_s)]

    def ran_s(self) -> float:
        """Seconds since this was made in which the cell was not suspended."""
        return self._clock() - self._began - self._total_s

    def longest_lately_s(self) -> float:
        """The longest suspension of which ranks may still find out; 0 where there was none."""
        return max((seconds for _, seconds in self._still_felt()), default=0.0)

    def _still_felt(self) -> list[tuple[float, float]]:
        since = self.ran_s() - _GIVE_UP_WITHIN_S
        return [one for one in self._lately if one[0] >= since]

    def _steps_by_now(self) -> Mapping[int, int]:
        """Steps of this try, by rank; without the ranks that have not begun."""
        steps = {}
        for rank in self._ranks:
            try:
                beat = read_heartbeat(self._folder.heartbeat_path(rank))
            except RecordError:
                continue  # that it cannot be read is for liveness to say
            if beat is not None:
                steps[rank] = beat.step - beat.first_step
        return steps


def name_suspended(verdict: Verdict, suspended_s: float, limit_s: float) -> Verdict:
    """The same, unless ranks gave up on each other because the whole cell had been suspended.

    The clocks of gloo and NCCL go on meanwhile, and nobody was to blame.

    Args:
        verdict: on ranks that failed.
        suspended_s: the longest suspension of which they may just have found out.
        limit_s: ``sweep.collective_timeout_s``.
    """
    gave_up = verdict.cause == "hang" or transient(verdict.message) == NO_PEER
    if not gave_up or suspended_s <= limit_s:
        return verdict
    message = _MESSAGE.format(suspended_s=suspended_s, limit_s=limit_s, said=verdict.message)
    return replace(verdict, cause="hang", message=message, rank=None)
