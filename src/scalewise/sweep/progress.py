"""Estimates of what a sweep has used of its devices, may still start, and will still take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scalewise.config import SweepConfig
from scalewise.records import (
    CellFolder,
    CellResult,
    RecordError,
    SweepFolder,
    load_json,
    load_or_none,
)


class Budget:
    """Device-hours of one sweep: every try counts, whatever came of it.

    Args:
        limit_hours: None for no limit.
        used_s: device-seconds that earlier processes of the sweep have used.
    """

    def __init__(self, limit_hours: float | None, used_s: float = 0.0) -> None:
        self.limit_hours = limit_hours
        self.used_s = used_s

    def spend(self, world_size: int, seconds: float) -> None:
        """A try at a cell of ``world_size`` devices has taken ``seconds``."""
        self.used_s += world_size * seconds

    def allows(
        self, world_size: int, expected_s: float | None, running: Iterable[tuple[int, float]]
    ) -> bool:
        """Whether a cell may start beside what runs.

        ``running`` are world_size and seconds of each running cell, those it is expected to take in
        all. A cell of which nothing is known may start as long as anything is left.
        """
        if self.limit_hours is None:
            return True
        limit_s = self.limit_hours * 3600
        taken = self.used_s + sum(world_size * seconds for world_size, seconds in running)
        if expected_s is None:
            return taken < limit_s
        return taken + world_size * expected_s <= limit_s

    def __str__(self) -> str:
        return (
            f"sweep.max_gpu_hours={self.limit_hours:g}: {self.used_s / 3600:.3g} h are used, and "
            "this cell would exceed it"
        )


def budget_of(folder: SweepFolder, sweeps: Iterable[SweepConfig]) -> Budget:
    """The narrowest limit of any cell, and what the folder's cells have used of it."""
    given = [one.max_gpu_hours for one in sweeps if one.max_gpu_hours is not None]
    # Reading every record of a folder takes time that a sweep without a limit need not spend.
    if not given:
        return Budget(None)
    cells = folder.cells() if folder.plan_path.exists() else ()
    return Budget(min(given), sum(_used_s(cell, planned.devices or 1) for planned, cell in cells))


def _used_s(cell: CellFolder, planned_world_size: int) -> float:
    """Device-seconds of every try at a cell that its records tell of, set-aside ones included."""
    found = (
        load_or_none(load_json, folder / "result.json", CellResult)
        for folder in (cell.path, *cell.path.glob("earlier/*"))
    )
    results: list[CellResult] = [result for result in found if result is not None]
    used = sum(r.world_size * r.took_s for r in results)
    world_size = results[0].world_size if results else planned_world_size
    try:
        failed = sum(a.took_s for a in cell.attempts())
    except RecordError:
        failed = 0.0  # torn by a crash: the report names the file
    return used + world_size * failed


class Remaining(NamedTuple):
    """A cell without a result."""

    config_id: str
    world_size: int
    """Number of devices."""
    elapsed_s: float | None = None
    """Since its supervisor started; None if it does not run."""
    steps_left_s: float | None = None
    """Until its last step at the pace of its heartbeats; None if they do not tell."""


class Durations:
    """Mean seconds of the ended cells of each configuration, and of all."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[int, float]] = {}
        self._all = (0, 0.0)

    def add(self, config_id: str, seconds: float) -> None:
        """A cell has ended with a result."""
        count, total = self._sums.get(config_id, (0, 0.0))
        self._sums[config_id] = (count + 1, total + seconds)
        self._all = (self._all[0] + 1, self._all[1] + seconds)

    def of(self, config_id: str) -> float | None:
        """Mean of the configuration's cells, else of all; None before the first has ended."""
        count, total = self._sums.get(config_id, self._all)
        return total / count if count else None

    def seconds_left(
        self, remaining: Sequence[Remaining], slots: int | None, packed: bool
    ) -> float | None:
        """Until the last of ``remaining`` has ended; None while nothing tells.

        Args:
            slots: devices of the one host; None on a cluster, which is taken to run as many cells
                side by side as now.
            packed: cells run side by side: device-time over devices, and at least the longest.
        """
        if not remaining:
            return 0.0
        known = self if self._all[0] else _first_steps(remaining)
        left = [_left_of(cell, known.of(cell.config_id)) for cell in remaining]
        times = [seconds for seconds in left if seconds is not None]
        if len(times) < len(left):
            return None
        if slots is not None and not packed:
            return sum(times)
        if slots is None:
            running = sum(cell.world_size for cell in remaining if cell.elapsed_s is not None)
            slots = max(running, *(cell.world_size for cell in remaining))
        work_s = sum(s * cell.world_size for s, cell in zip(times, remaining, strict=True))
        return max(work_s / slots, *times)


def _first_steps(remaining: Sequence[Remaining]) -> Durations:
    """Durations of running cells by their own steps, before the first one has ended."""
    found = Durations()
    for cell in remaining:
        if cell.elapsed_s is not None and cell.steps_left_s is not None:
            found.add(cell.config_id, cell.elapsed_s + cell.steps_left_s)
    return found


def _left_of(cell: Remaining, mean_s: float | None) -> float | None:
    if cell.elapsed_s is None:
        return mean_s
    if cell.steps_left_s is not None:
        return cell.steps_left_s
    return None if mean_s is None else max(mean_s - cell.elapsed_s, 0.0)
