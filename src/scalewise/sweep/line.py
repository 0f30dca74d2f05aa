"""The cells of this host that wait for their turn, and whose turn it is.

Cells that could want the same devices stand in one queue. Those of other devices, of another kind
of GPU say, stand in another, and none waits for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scalewise.records import DeviceInfo
from scalewise.sweep.display import Progress
from scalewise.sweep.durations import Durations, Remaining
from scalewise.sweep.lease import Host, units
from scalewise.sweep.plan import Cell
from scalewise.sweep.running import RunningCell
from scalewise.sweep.schedule import Waiting, starts_now


@dataclass(frozen=True)
class Turn:
    """A cell that waits."""

    cell: Cell
    width: int
    host: Host


@dataclass(frozen=True)
class Queue:
    """Cells that could want the same devices."""

    turns: tuple[Turn, ...]
    """In the order of the plan."""
    units: frozenset[str]
    """What the devices of any of them are made of."""
    slots: int
    """Devices of all of them together."""


def queues(turns: Sequence[Turn], usable: Callable[[Turn], Sequence[DeviceInfo]]) -> list[Queue]:
    """Turns whose devices touch, directly or by a third, are in one queue."""
    of_devices: dict[tuple[DeviceInfo, ...], list[Turn]] = {}
    for turn in turns:
        of_devices.setdefault(tuple(usable(turn)), []).append(turn)
    place = {id(turn): i for i, turn in enumerate(turns)}
    found: list[Queue] = []
    for devices, own in of_devices.items():
        gpus = frozenset(unit for device in devices for unit in units(device))
        touching = [queue for queue in found if queue.units & gpus]
        together = [*own, *(turn for queue in touching for turn in queue.turns)]
        everything = gpus.union(*(queue.units for queue in touching))
        # Each GPU is one unit. Of a CPU, profiles may make devices of other sizes.
        count = max([len(devices), *(queue.slots for queue in touching)])
        slots = len(everything) if any(device.uuid for device in devices) else count
        ordered = tuple(sorted(together, key=lambda turn: place[id(turn)]))
        found = [q for q in found if q not in touching] + [Queue(ordered, everything, slots)]
    return found


class Line:
    """Waiting cells in the order of the plan.

    Args:
        packed: start what fills the host best; otherwise one cell at a time, in order.
        durations: of the sweep's ended cells, that others add to.
    """

    def __init__(self, packed: bool, durations: Durations) -> None:
        self.packed = packed
        self.waiting: list[Turn] = []
        self._durations = durations
        self._chosen: list[list[str]] | None = None

    def forget_choice(self) -> None:
        """Something has ended, or devices have gone: what is to start next is decided anew."""
        self._chosen = None

    def next_up(
        self, running: Sequence[RunningCell], usable: Callable[[Turn], Sequence[DeviceInfo]]
    ) -> list[list[Turn]]:
        """The cells of each queue that are to start now, as soon as their devices can be leased.

        ``usable``: the devices that a cell may have, of which it takes as many as it is wide.
        """
        if not self.packed:
            return [] if running else [self.waiting[:1]]
        if self._chosen is None:
            found = queues(self.waiting, usable)
            self._chosen = [self._choose(queue, running) for queue in found]
        turns = {turn.cell.planned.cell_id: turn for turn in self.waiting}
        return [[turns[key] for key in keys if key in turns] for keys in self._chosen]

    def _choose(self, queue: Queue, running: Sequence[RunningCell]) -> list[str]:
        waiting = [
            Waiting(one.cell_id, turn.width, self._durations.of(one.config_id))
            for turn in queue.turns
            if (one := turn.cell.planned)
        ]
        ahead = [r for r in running if any(queue.units & {*units(slot)} for slot in r.lease.slots)]
        taken = sum(r.width for r in ahead)
        return starts_now(waiting, taken, max(queue.slots, taken))


def remaining_of(
    cell: Cell, width: int, age_s: float | None = None, progress: Progress | None = None
) -> Remaining:
    """A cell that has run for ``age_s`` and made ``progress``, or has not started."""
    left_s = None if progress is None else progress.seconds_left
    return Remaining(cell.planned.config_id, width, age_s, left_s)
