"""An executor whose cells end at once, as a test says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

from scalewise.records import CellFolder, Ending
from scalewise.sweep import Cell, Executor, LauncherConfig, QueuedCell, RunningCell


@dataclass(eq=False)
class PlayedCell(RunningCell):
    """A cell that ends at the next look."""

    ending: Ending


class PlayedExecutor(Executor[PlayedCell]):
    """Starts every cell at once.

    Args:
        play: makes the records of a try, and says how it ends.
    """

    def __init__(self, play: Callable[[Cell, CellFolder], Ending]) -> None:
        super().__init__(LauncherConfig())
        self.play = play
        self.started: list[Cell] = []

    def demand(self, cell: Cell) -> SimpleNamespace:
        return SimpleNamespace(world_size=cell.planned.devices or 1)

    def start(self, queued: QueuedCell) -> PlayedCell:
        self.started.append(queued.cell)
        ending = replace(self.play(queued.cell, queued.folder), elapsed_s=1.0)
        return PlayedCell(queued.cell, queued.folder, queued.demand, ending)

    def poll(self, running: Sequence[PlayedCell]) -> list[tuple[PlayedCell, Ending]]:
        return [(cell, cell.ending) for cell in running]

    def cancel(self, running: Sequence[PlayedCell], deadline: float) -> None: ...
