"""The devices of a local sweep's cells, sampled by the sweep's own process while they run.

When that process dies, its supervisors end their cells: nobody has to take over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from scalewise.gpu.sampler import DeviceSampler
from scalewise.records import CellFolder, DeviceInfo
from scalewise.sweep.plan import Cell
from scalewise.sweep.process_tree import find_below, worker_command


class Sampling:
    """A sampler for each cell that runs."""

    def __init__(self) -> None:
        self._samplers: dict[str, DeviceSampler] = {}

    def begin(self, cell: Cell, folder: CellFolder, slots: Sequence[DeviceInfo]) -> None:
        """Call it before the cell's supervisor starts, to tell its ranks from an earlier try's."""
        config = cell.request.cell
        if config.monitor.devices:
            sampler = self._samplers[cell.planned.name] = DeviceSampler(
                folder,
                {slot.uuid: rank for rank, slot in enumerate(slots) if slot.uuid},
                _trainers_of(folder, is_wrapped=config.sweep.wrap is not None),
                config.monitor.interval_s,
            )
            sampler.start()

    def end(self, cell: Cell) -> None:
        """Its ranks have ended: take a last sample and close its record."""
        sampler = self._samplers.pop(cell.planned.name, None)
        if sampler is not None:
            sampler.stop()


def _trainers_of(folder: CellFolder, *, is_wrapped: bool) -> Callable[[], Mapping[int, int] | None]:
    """Ranks to the processes that train, as the supervisor of the try to come names them."""
    before = folder.load_running()
    started: tuple[int, ...] = ()
    own = worker_command(str(folder.path.resolve()))

    def trainers() -> dict[int, int] | None:
        nonlocal started
        if not started:
            running = folder.load_running()
            if running is None or running == before or not running.pids:
                return None
            started = running.pids
        if not is_wrapped:
            return dict(enumerate(started))
        found = ((rank, find_below(pid, own)) for rank, pid in enumerate(started))
        return {rank: pid for rank, pid in found if pid is not None}

    return trainers
