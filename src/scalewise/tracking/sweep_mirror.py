"""All cells of a sweep, mirrored by one process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from scalewise.records import CellFolder, RecordError, SweepFolder
from scalewise.tracking.base import Tracker, open_tracker
from scalewise.tracking.cell_mirror import CellMirror
from scalewise.tracking.lane import Lane


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - the sweep shows this stream


class SweepMirror:
    """Follows the plan of a sweep and mirrors each of its cells."""

    def __init__(
        self,
        folder: Path,
        *,
        single_cell: bool = False,
        complain: Callable[[str], None] = _to_stderr,
        opener: Callable[[str], Tracker] = open_tracker,
    ) -> None:
        self._folder = folder
        self._complain = complain
        self._opener = opener
        self._lanes: dict[str, Lane] = {}
        self._cells: dict[str, CellMirror] = {}
        self._plan_mtime_ns: int | None = None
        self._single_cell = single_cell
        self._said_plan: str | None = None
        self._problems = 0
        if single_cell:
            self._cells[folder.name] = CellMirror(CellFolder(folder), self._lane, self._say)

    def poll(self) -> None:
        """Hand over what is new in every cell."""
        self._follow_plan()
        for cell in self._cells.values():
            cell.poll()

    def finish(self, timeout_s: float) -> int:
        """Hand over the rest and wait for the trackers. 0 if they hold everything, else 1."""
        deadline = time.monotonic() + timeout_s
        self.poll()
        for cell in self._cells.values():
            cell.close()
        for lane in self._lanes.values():
            if not lane.wait(deadline):
                self._say(f"{lane.name}: did not take everything within {timeout_s:g} s")
                lane.abandon()
        return 1 if self._problems else 0

    def _follow_plan(self) -> None:
        """A sweep may gain cells while it runs."""
        if self._single_cell:
            return
        sweep = SweepFolder(self._folder)
        try:
            mtime_ns = sweep.plan_path.stat().st_mtime_ns
            if mtime_ns == self._plan_mtime_ns:
                return
            plan = sweep.load_plan()
        except (OSError, RecordError) as error:
            if str(error) != self._said_plan:
                self._said_plan = str(error)
                self._say(f"tracking: {error}")
            return
        self._plan_mtime_ns = mtime_ns
        for planned in plan.cells:
            if planned.name not in self._cells:
                cell = sweep.cell(planned.name)
                self._cells[planned.name] = CellMirror(
                    cell, self._lane, self._say, planned, self._folder
                )

    def _lane(self, tracker: str) -> Lane:
        if tracker not in self._lanes:
            self._lanes[tracker] = Lane(tracker, self._say, self._opener)
        return self._lanes[tracker]

    def _say(self, problem: str) -> None:
        self._problems += 1
        self._complain(problem)
