"""What a sweep has used of its devices, and may still use."""

from __future__ import annotations

from collections.abc import Iterable

from scalewise.config import SweepConfig
from scalewise.records import (
    CellFolder,
    CellResult,
    RecordError,
    SweepFolder,
    load_json,
    load_or_none,
)


class DeviceHours:
    """The device-hours of one sweep: every try counts, whatever came of it.

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


def read_device_hours(folder: SweepFolder, sweeps: Iterable[SweepConfig]) -> DeviceHours:
    """The narrowest limit of any cell, and what the folder's cells have used of it."""
    given = [one.max_gpu_hours for one in sweeps if one.max_gpu_hours is not None]
    # Reading every record of a folder takes time that a sweep without a limit need not spend.
    if not given:
        return DeviceHours(None)
    cells = folder.cells() if folder.plan_path.exists() else ()
    used_s = sum(_used_s(cell, planned.devices or 1) for planned, cell in cells)
    return DeviceHours(min(given), used_s)


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
