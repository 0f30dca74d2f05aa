"""``sweep.max_gpu_hours``: what a sweep has used of its devices, and what it may still start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalewise.policies import SweepConfig
from scalewise.records import CellFolder, CellResult, RecordError, SweepFolder
from scalewise.records.files import load_json


@dataclass(frozen=True)
class Afforded:
    """Places of cells in a list, by what a budget says of them."""

    now: Sequence[int]
    later: Sequence[int]
    """To be asked about again when something has ended."""
    never: Sequence[int]
    """Nothing is left that could end cheaper than expected, and there is no room."""


class Budget:
    """Device-hours of one sweep: every try counts, whatever came of it.

    Args:
        limit_hours: None for no limit.
        used_s: device-seconds that earlier processes of the sweep have used.
    """

    def __init__(self, limit_hours: float | None, used_s: float = 0.0) -> None:
        self.limit_hours = limit_hours
        self.used_s = used_s

    def spend(self, width: int, seconds: float) -> None:
        """A try at a cell of ``width`` devices has taken ``seconds``."""
        self.used_s += width * seconds

    def allows(
        self, width: int, expected_s: float | None, running: Iterable[tuple[int, float]]
    ) -> bool:
        """Whether a cell may start beside what runs.

        ``running`` are width and seconds of each running cell, those it is expected to take in
        all. A cell of which nothing is known may start as long as anything is left.
        """
        if self.limit_hours is None:
            return True
        limit_s = self.limit_hours * 3600
        taken = self.used_s + sum(width * seconds for width, seconds in running)
        if expected_s is None:
            return taken < limit_s
        return taken + width * expected_s <= limit_s

    def share_out(
        self,
        width: int,
        expected_s: Sequence[float | None],
        at_most_s: float,
        ahead: Sequence[tuple[int, float]],
    ) -> Afforded:
        """Which of several cells of one width may join a queue, where nobody knows when they start.

        A cell of which nothing is known counts with ``at_most_s``. One without room is judged
        again when those ahead of it have ended, by what they really took; none overtakes it.

        Args:
            width: devices of each cell.
            expected_s: of each cell; None where nothing is known.
            at_most_s: the time limit of a cell.
            ahead: width and seconds of each cell that is queued or runs.
        """
        now: list[int] = []
        never: list[int] = []
        before = list(ahead)
        for index, expected in enumerate(expected_s):
            longest = at_most_s if expected is None else expected
            if self.allows(width, longest if before else expected, before):
                now.append(index)
                before.append((width, longest))
            elif before:
                return Afforded(now, range(index, len(expected_s)), never)
            else:
                never.append(index)
        return Afforded(now, (), never)

    def __str__(self) -> str:
        return (
            f"sweep.max_gpu_hours={self.limit_hours:g}: {self.used_s / 3600:.3g} h are used, and "
            "this cell would exceed it"
        )


def budget_of(folder: SweepFolder, sweeps: Iterable[SweepConfig]) -> Budget:
    """The narrowest limit of any cell, and what the folder's cells have used of it."""
    given = [one.max_gpu_hours for one in sweeps if one.max_gpu_hours is not None]
    # Reading every record of a folder takes time that a sweep without a limit need not spend.
    return Budget(min(given), used_device_s(folder)) if given else Budget(None)


def used_device_s(folder: SweepFolder) -> float:
    """Device-seconds of every try that the folder records, set-aside ones included."""
    if not folder.plan_path.exists():
        return 0.0
    return sum(_used_by(cell, planned.devices or 1) for planned, cell in folder.cells())


def _used_by(cell: CellFolder, planned_width: int) -> float:
    results = [*_results(cell.path), *_results(*cell.path.glob("earlier/*"))]
    used = sum(r.world_size * r.took_s for r in results)
    width = results[0].world_size if results else planned_width
    try:
        failed = sum(a.took_s for a in cell.attempts())
    except RecordError:
        failed = 0.0  # torn by a crash: the report names the file
    return used + width * failed


def _results(*folders: Path) -> list[CellResult]:
    found = []
    for folder in folders:
        try:
            found.append(load_json(folder / "result.json", CellResult))
        except RecordError:
            continue
    return found
