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
from scalewise.records import DeviceInfo
from scalewise.supervisor import Outcome
from scalewise.sweep.executor import QueuedCell
from scalewise.sweep.plan import Cell


@dataclass(frozen=True)
class Waiting:
    """A cell that has not started."""

    key: str
    world_size: int
    """Slots it takes."""
    repeat: int
    """Its round."""


def starts_now(waiting: Sequence[Waiting], taken: int, slots: int) -> list[str]:
    """Keys of the cells to start now, in that order, where ``taken`` of ``slots`` slots are busy.

    ``waiting`` is in the order of the plan. A narrow cell fills what a wider one before it cannot
    use yet, but only one of its round: so a wide cell waits for no more than that.

    Raises ValueError for a cell that is wider than the host.
    """
    too_wide = next((w for w in waiting if w.world_size > slots), None)
    if too_wide is not None:
        raise ValueError(f"{too_wide.key}: {too_wide.world_size} slots; this host has {slots}")
    started, free = [], slots - taken
    present = min((w.repeat for w in waiting), default=0)
    for one in waiting:
        if one.repeat == present and one.world_size <= free:
            free -= one.world_size
            started.append(one.key)
    return started


@dataclass(frozen=True)
class LocalDemand:
    """The demand of a cell on this host."""

    world_size: int
    """Number of devices."""
    host: Host


@dataclass(frozen=True)
class Queue:
    """Cells that could want the same devices."""

    cells: tuple[QueuedCell, ...]
    """In the order of the plan."""
    units: frozenset[str]
    """Units of the devices of any of them."""
    slots: int
    """Devices of all of them together."""


def divide_into_queues(
    cells: Sequence[QueuedCell], usable: Callable[[QueuedCell], Sequence[DeviceInfo]]
) -> list[Queue]:
    """Divide cells so that those whose devices touch, directly or by a third, are in one queue.

    Those of other devices, of another kind of GPU say, never wait for them.
    """
    of_devices: dict[tuple[DeviceInfo, ...], list[QueuedCell]] = {}
    for queued in cells:
        of_devices.setdefault(tuple(usable(queued)), []).append(queued)
    place = {id(queued): i for i, queued in enumerate(cells)}
    found: list[Queue] = []
    for devices, own in of_devices.items():
        gpus = frozenset(unit for device in devices for unit in units(device))
        touching = [queue for queue in found if queue.units & gpus]
        together = [*own, *(queued for queue in touching for queued in queue.cells)]
        everything = gpus.union(*(queue.units for queue in touching))
        # Each GPU is one unit; profiles may divide a CPU into devices of other sizes.
        count = max([len(devices), *(queue.slots for queue in touching)])
        slots = len(everything) if any(device.uuid for device in devices) else count
        ordered = tuple(sorted(together, key=lambda queued: place[id(queued)]))
        found = [q for q in found if q not in touching] + [Queue(ordered, everything, slots)]
    return found


def choose_cells(
    waiting: Sequence[QueuedCell],
    leased: Sequence[Sequence[DeviceInfo]],
    usable: Callable[[QueuedCell], Sequence[DeviceInfo]],
) -> list[QueuedCell]:
    """The queued cells to start now beside the running ones.

    Args:
        waiting: in the order of the plan.
        leased: devices of each running cell.
        usable: the devices that a cell may have; it takes ``world_size`` of them.
    """
    by_id = {queued.cell.planned.cell_id: queued for queued in waiting}
    chosen: list[QueuedCell] = []
    for queue in divide_into_queues(waiting, usable):
        cells = [
            Waiting(planned.cell_id, queued.world_size, planned.repeat)
            for queued in queue.cells
            for planned in [queued.cell.planned]
        ]
        ahead = [own for own in leased if any(queue.units & {*units(slot)} for slot in own)]
        taken = sum(map(len, ahead))
        chosen += [by_id[key] for key in starts_now(cells, taken, max(queue.slots, taken))]
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
        self._said = False

    def end(self) -> None:
        """Something could be leased."""
        self._since, self._said = None, False

    def outcome(self, cell: Cell, leases: Leases, others_run: bool) -> Outcome | None:
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
            return Outcome("skipped" if sweep.foreign_processes == "skip" else "failed", why)
        now = self._clock()
        self._since = now if self._since is None else self._since
        if now - self._since > sweep.foreign_wait_s:
            self.end()
            why = f"{who}, for longer than sweep.foreign_wait_s={sweep.foreign_wait_s:g}"
            return Outcome("skipped", why)
        self._say(f"waiting: {who}; sweep.foreign_processes=skip or fail would not wait")
        return None

    def _say(self, text: str) -> None:
        if not self._said:
            self._said = True
            self._note(text)
