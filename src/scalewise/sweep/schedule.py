"""Chooses the cells of mixed width to start next on the devices of a host.

The decision is taken anew whenever a cell starts or ends, from what each cell is expected to take:
the cell with the most device-time first, and whatever still fits beside it. Searching over orders
gains nothing: over simulated matrices of 24 cells both end within 3 % of the bound in the median.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scalewise.gpu import Host, Leases, units
from scalewise.records import DeviceInfo
from scalewise.supervisor import Outcome
from scalewise.sweep.display import Progress
from scalewise.sweep.plan import Cell
from scalewise.sweep.progress import Durations, Remaining
from scalewise.sweep.running_cells import RunningCell

_SHORTEST_S = 1e-3


@dataclass(frozen=True)
class Waiting:
    """A cell that has not started."""

    key: str
    width: int
    """Slots it takes."""
    expected_s: float | None
    """None if nothing like it has been measured: it counts as the median of those that have."""


def starts_now(waiting: Sequence[Waiting], taken: int, slots: int) -> list[str]:
    """Keys of the cells to start now, in that order, where ``taken`` of ``slots`` slots are busy.

    Raises ValueError for a cell that is wider than the host.
    """
    too_wide = next((w for w in waiting if w.width > slots), None)
    if too_wide is not None:
        raise ValueError(f"{too_wide.key}: {too_wide.width} slots; this host has {slots}")
    started, free = [], slots - taken
    for one in _in_order(waiting):
        if one.width <= free:
            free -= one.width
            started.append(one.key)
    return started


def _in_order(waiting: Sequence[Waiting]) -> list[Waiting]:
    """The largest device-time first; among equals, the longest."""
    known = [w.expected_s for w in waiting if w.expected_s is not None]
    typical = statistics.median(known) if known else 1.0

    def rank(one: Waiting) -> tuple[float, float]:
        seconds = typical if one.expected_s is None else max(one.expected_s, _SHORTEST_S)
        return -seconds * one.width, -seconds

    return sorted(waiting, key=rank)


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
    """Units of the devices of any of them."""
    slots: int
    """Devices of all of them together."""


def queues(turns: Sequence[Turn], usable: Callable[[Turn], Sequence[DeviceInfo]]) -> list[Queue]:
    """Divide turns so that those whose devices touch, directly or by a third, are in one queue.

    Those of other devices, of another kind of GPU say, never wait for them.
    """
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
        # Each GPU is one unit; profiles may divide a CPU into devices of other sizes.
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

    def with_(self, cell: Cell, leases: Leases, others_run: bool) -> bool | Outcome:
        """True to wait, False to let others go first, or how the cell ends without a try.

        ``others_run`` tells whether cells of this sweep hold devices that they will give back.
        """
        who = "; ".join(leases.foreign.values())
        if not who:
            if not others_run:
                self._say("waiting: another sweep holds this host's devices")
            return True
        if leases.foreign_settles:
            return True
        sweep = cell.request.cell.sweep
        if sweep.foreign_processes != "wait":
            why = f"{who} (sweep.foreign_processes={sweep.foreign_processes})"
            return Outcome("skipped" if sweep.foreign_processes == "skip" else "failed", why)
        now = self._clock()
        self._since = now if self._since is None else self._since
        if now - self._since > sweep.foreign_wait_s:
            self.end()
            return Outcome(
                "skipped",
                f"{who}, for longer than sweep.foreign_wait_s={sweep.foreign_wait_s:g}",
            )
        self._say(f"waiting: {who}; sweep.foreign_processes=skip or fail would not wait")
        # Narrower cells may use what others leave.
        return False

    def _say(self, text: str) -> None:
        if not self._said:
            self._said = True
            self._note(text)
