"""Where a sweep stands, read from its folder alone: it need not be running, nor on this host."""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from scalewise.records import CellResult, PlannedCell, RecordError, SweepFolder
from scalewise.records.quarantine import QuarantinedDevice, load_quarantine
from scalewise.sweep.cell_status import UNFINISHED, CellStatus, read_cell
from scalewise.sweep.durations import Durations, Remaining


@dataclass(frozen=True)
class SweepStatus:
    """All cells of a sweep and when the last of them will have ended."""

    folder: str
    time: float
    """Unix time at which it was read."""
    policy: str
    cells: tuple[CellStatus, ...]
    seconds_left: float | None
    """Of the cells that run, wait, or were interrupted and run again when the sweep is resumed;
    None if nothing tells yet."""
    quarantined: tuple[QuarantinedDevice, ...] = ()
    """Devices that get no more cells of this sweep."""
    held: bool = False
    """Whether a process of this host runs the sweep, be it between two cells."""
    problems: tuple[str, ...] = ()
    """What of the folder could not be read."""

    @property
    def running(self) -> bool:
        return self.held or any(cell.state == "running" for cell in self.cells)

    def count(self) -> dict[str, int]:
        """Cells by state."""
        return dict(Counter(cell.state for cell in self.cells))


class StatusReader:
    """Reads a sweep again and again; cells that are done are read once.

    Args:
        folder: the sweep's. Raises :class:`RecordError` where it holds no plan.
    """

    def __init__(self, folder: Path) -> None:
        self.sweep = SweepFolder(folder)
        self._done: dict[str, tuple[CellStatus, CellResult]] = {}
        self.sweep.load_plan()

    def read(self, now: float | None = None) -> SweepStatus:
        """The state of every cell at the Unix time ``now``."""
        from scalewise.analysis.labels import swept_words

        now = time.time() if now is None else now
        plan = self.sweep.load_plan()
        swept = swept_words(plan.cells)
        cells = tuple(
            replace(self._cell(planned, now), swept=swept[planned.cell_id])
            for planned in plan.cells
        )
        durations = Durations()
        for cell in cells:
            if cell.state == "done":
                durations.add(cell.config_id, self._done[cell.cell_id][1].took_s)
        widest = plan.slots or max((c.devices or 1 for c in cells), default=1)
        left = [_remaining(c, widest) for c in cells if c.state in UNFINISHED]
        quarantined, problems = _quarantined(self.sweep.path)
        return SweepStatus(
            str(self.sweep.path),
            now,
            plan.policy,
            cells,
            durations.seconds_left(left, plan.slots, plan.policy == "packed"),
            quarantined,
            is_held(self.sweep.lock_path),
            problems,
        )

    def _cell(self, planned: PlannedCell, now: float) -> CellStatus:
        if planned.cell_id in self._done:
            return self._done[planned.cell_id][0]
        status, result = read_cell(planned, self.sweep.cell(planned.name), now)
        if result is not None:
            self._done[planned.cell_id] = (status, result)
        return status


def _quarantined(sweep: Path) -> tuple[tuple[QuarantinedDevice, ...], tuple[str, ...]]:
    """What was put aside, and why that cannot be told where its file is damaged."""
    try:
        return load_quarantine(sweep).devices, ()
    except RecordError as error:
        return (), (f"which devices are quarantined is not known: {error}",)


def is_held(lock: Path) -> bool:
    """Whether a process has the lock of a sweep's folder; False where that cannot be asked.

    To ask is to share it for an instant, which the engine allows for.
    """
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)
    return False


def _remaining(cell: CellStatus, slots: int) -> Remaining:
    width = cell.devices or slots
    if cell.state != "running":
        return Remaining(cell.config_id, width)
    return Remaining(cell.config_id, width, cell.elapsed_s, cell.seconds_left)
