"""Chooses the cells of different world sizes to start next on the devices of a host.

The decision is taken anew whenever a cell starts or ends: of the present round whatever fits, in
the order of the plan. The next round waits until all of this one have started, so that what is
compared within a round ran in one stretch of time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scalewise.gpu import Host, Leases, units
from scalewise.records import DeviceInfo, Ending, State
from scalewise.sweep.executor import QueuedCell
from scalewise.sweep.plan import Cell
from scalewise.sweep.status_view import duration


@dataclass(frozen=True)
class LocalDemand:
    """The demand of a cell on this host."""

    world_size: int
    """Number of devices."""
    host: Host


def choose_cells(
    waiting: Sequence[QueuedCell], leased: Sequence[Sequence[DeviceInfo]]
) -> list[QueuedCell]:
    """The queued cells to start now beside the running ones.

    A narrow cell fills what a wider one before it cannot use yet, but only one of its round: so a
    wide cell waits for no more than that.

    Args:
        waiting: in the order of the plan.
        leased: devices of each running cell.
    """
    busy = {unit for slots in leased for slot in slots for unit in units(slot)}
    present = min((queued.cell.planned.repeat for queued in waiting), default=0)
    chosen: list[QueuedCell] = []
    for queued in waiting:
        free = [slot for slot in queued.demand.host.slots if busy.isdisjoint(units(slot))]
        if queued.cell.planned.repeat == present and len(free) >= queued.world_size:
            busy.update(unit for slot in free[: queued.world_size] for unit in units(slot))
            chosen.append(queued)
    return chosen


class DeviceWait:
    """Decides about a cell whose devices others have, by ``sweep.foreign_processes``.

    Args:
        note: told once what is waited for.
        clock: seconds.
    """

    def __init__(
        self, note: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._note = note
        self._clock = clock
        self._since: float | None = None
        self._waits_since: float | None = None

    def end(self) -> None:
        """Something could be leased; says how long was waited."""
        if self._waits_since is not None:
            self._note(f"waited   {duration(self._clock() - self._waits_since)} for devices")
        self._since = self._waits_since = None

    def ending(self, cell: Cell, leases: Leases, others_run: bool) -> Ending | None:
        """How the cell ends without a try; None while it waits.

        ``others_run`` tells whether cells of this sweep hold devices that they will give back.
        """
        who = "; ".join(leases.foreign.values())
        if not who:
            if not others_run:
                self._say(f"waiting: {leases.holder or 'another sweep'} holds this host's devices")
            return None
        if leases.foreign_settles:
            return None
        sweep = cell.request.cell.sweep
        if sweep.foreign_processes != "wait":
            why = f"{who} (sweep.foreign_processes={sweep.foreign_processes})"
            outcome: State = "skipped" if sweep.foreign_processes == "skip" else "failed"
            return Ending(outcome, "host", why)
        now = self._clock()
        self._since = now if self._since is None else self._since
        if now - self._since > sweep.foreign_wait_s:
            self.end()
            why = f"{who}, for longer than sweep.foreign_wait_s={sweep.foreign_wait_s:g}"
            return Ending("skipped", "host", why)
        self._say(f"waiting: {who}; sweep.foreign_processes=skip or fail would not wait")
        return None

    def _say(self, text: str) -> None:
        if self._waits_since is None:
            self._waits_since = self._clock()
            self._note(text)
