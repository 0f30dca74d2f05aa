"""The end of a run that lasts as long as its timed steps must.

Rank 0 sees the pace of its steps and announces the last one, by its number, through the process
group's store; every rank ends after exactly that step. Ranks that end by their own clocks hang.
Nobody waits for it: the recording thread of each rank looks four times a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from scalewise.records import LengthRecord
from scalewise.train.rank import RankContext
from scalewise.train.recording import INTERVAL_S
from scalewise.train.torch_internals import Store, default_store

if TYPE_CHECKING:
    import pytorch_lightning as pl

LEAD_S = 4 * INTERVAL_S
"""The last step is announced so long before it: four looks of the others, for one to be late."""
FEWEST_STEPS = 3
"""Timed steps that a run has at least, however long they take: fewer tell no pace."""
SHORTEST_S, LONGEST_S = 1.5, 3.0
"""Seconds of timed steps, unless others were asked for: the shortest on CPUs, where longer ones do
not make runs agree better (docs/statistics.md), and the longest on GPUs, which take long to start.
"""
LEAST_STEPS = 50
"""Steps for which a CPU is timed up to the longest: of fewer no later warm-up can be told."""
_SPARE = 1.1
"""So many times the steps that are missing: a pace that quickens by less leaves it long enough.
"""


def raise_it(error: BaseException) -> None:
    """Leave it to whoever runs the thread: the training thread gets it at its next step."""
    raise error


class TooLateError(RuntimeError):
    """This rank goes on although the others end, and would wait for them in vain."""


def choose_last_step(min_time_s: float, timed_s: float, pace_s: float, furthest: int) -> int | None:
    """The step after which ``min_time_s`` are timed, at least ``LEAD_S`` from now; None too early.
    ``furthest`` are the steps that a rank may have begun by now.
    """
    ahead_s = min_time_s - timed_s
    if ahead_s > LEAD_S + INTERVAL_S:
        return None  # the later, the surer the pace
    return furthest + math.ceil(max(_SPARE * ahead_s, LEAD_S) / pace_s)


class RunLength:
    """Ends the fit of one rank, of any ``recorder``, after the step that rank 0 announces.

    ``min_time_s`` None leaves the time to the device and the pace of its steps. ``apart_steps`` are
    those that ranks may be apart, and that are begun at once. ``give_up`` ends this process with an
    error, while its training thread waits for others. ``store`` is where the ranks meet; None for
    that of their process group.
    """

    def __init__(
        self, min_time_s: float | None, rank: RankContext, recorder: Any, apart_steps: int,
        give_up: Callable[[BaseException], None] = raise_it, store: Store | None = None,
    ) -> None:  # fmt: skip
        own_s = SHORTEST_S if rank.device.kind == "cpu" else LONGEST_S
        self._min_time_s = own_s if min_time_s is None else min_time_s
        self._longest_s = LONGEST_S if min_time_s is None else min_time_s
        self._rank = rank
        self._recorder = recorder
        self._apart_steps = apart_steps
        self._give_up = give_up
        self._store = store
        self._key = f"last_step/{recorder.folder.path.name}"
        self._seen = (0, 0.0)
        """Timed steps at the look before, and their seconds."""
        self._told: tuple[int, int] | None = None
        """The last step, and the steps this rank had done when it knew."""
        self._applied = False
        self._overdue = False

    def attach(self, trainer: pl.Trainer) -> None:
        """Take part in ``trainer``'s loop and in the recorder's thread."""
        self.take_part()
        loop: Any = trainer.fit_loop.epoch_loop
        end = loop.on_advance_end

        def on_advance_end(fetcher: Any) -> None:
            last = self.settle()
            if last is not None:
                # Lightning may count several a step, or none: where a module optimizes by hand.
                loop.max_steps = loop.global_step + last - self._recorder.steps.steps
            end(fetcher)

        loop.on_advance_end = on_advance_end

    def take_part(self) -> None:
        """Take part in the recorder's thread; whoever trains asks :meth:`settle`."""
        self._recorder.look = self.look
        self._recorder.length = self.record

    def record(self) -> LengthRecord:
        """How long the run was to be; asked when training is over."""
        last, known_at = self._told or (None, None)
        return LengthRecord("min_time_s", self._min_time_s, last, known_at)

    def look(self) -> None:
        """Announce the last step, or learn of it. Called from the recording thread."""
        if self._applied:
            return
        if self._told is not None:
            self._check_in_time(self._told[0])
        elif self._rank.is_first:
            self._announce()
        else:
            self._listen(self._met)

    @property
    def _met(self) -> Store:
        return default_store() if self._store is None else self._store

    def _announce(self) -> None:
        steps = self._recorder.steps
        timed_steps, timed_s = steps.timed
        before_steps, before_s = self._seen
        self._seen = timed_steps, timed_s
        if timed_steps < FEWEST_STEPS:
            return
        pace_s = timed_s / timed_steps
        if timed_steps - before_steps >= FEWEST_STEPS:
            # A stop among the first steps must not make the run too short.
            pace_s = min(pace_s, (timed_s - before_s) / (timed_steps - before_steps))
        furthest = self._furthest(steps.steps)
        if furthest is None:
            return
        timed_s += pace_s * (steps.steps - steps.rows)  # of those not written yet
        least_s = min(max(self._min_time_s, LEAST_STEPS * pace_s), self._longest_s)
        last = choose_last_step(least_s, timed_s, pace_s, furthest + self._apart_steps)
        if last is not None:
            if self._rank.world_size > 1:
                self._met.set(self._key, str(last))
            self._told = last, steps.steps

    def _furthest(self, own: int) -> int | None:
        """Steps of the rank that is ahead of the others; None until each has said where it is."""
        if self._rank.world_size == 1:
            return own
        store = self._met
        others = [f"{self._key}/{rank}" for rank in range(1, self._rank.world_size)]
        if not store.check(others):
            return None
        return max(own, *(int(store.get(key)) for key in others))

    def _listen(self, store: Store) -> None:
        steps = self._recorder.steps
        try:
            store.set(f"{self._key}/{self._rank.rank}", str(steps.steps))
            if store.check([self._key]):
                self._told = int(store.get(self._key)), steps.steps
        except dist.DistError:
            # Rank 0, which holds the store, is gone; a collective may wait for it for ever.
            self._give_up(TooLateError(
                f"measure.min_time_s: rank {self._rank.rank} cannot ask rank 0 for the last step"
            ))  # fmt: skip

    def settle(self) -> int | None:
        """The last step, for the training thread at the end of a batch; None while nobody knows.

        Raises :class:`TooLateError` where it lies behind this rank.
        """
        if self._told is None:
            return None
        last = self._told[0]
        if not self._applied:
            self._applied = True
            if self._recorder.steps.steps > last:
                raise self._too_late(last)
            self._recorder.plan_steps(last)
        return last

    def _check_in_time(self, last: int) -> None:
        """It has been half a second: is the training thread past the last step, and waits?"""
        overdue = self._recorder.steps.steps >= last
        if overdue and self._overdue:
            self._give_up(self._too_late(last))
        self._overdue = overdue

    def _too_late(self, last: int) -> TooLateError:
        return TooLateError(
            f"measure.min_time_s: rank {self._rank.rank} was past step {last:,}, the last of all "
            "ranks, when it learned of it: its threads had no core for seconds; free some, or set "
            "max_steps"
        )
