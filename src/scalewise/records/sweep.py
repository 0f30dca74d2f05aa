"""The plan of a sweep, and where its cells lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import NonNegativeInt

from scalewise.records.cell import CellFolder
from scalewise.records.files import FileName, UnixTime, WorldSize, load_json, save_json


@dataclass(frozen=True)
class PlannedCell:
    """A cell as it was asked for."""

    cell_id: str
    config_id: str
    name: FileName
    """The name of its folder inside the sweep's."""
    overrides: tuple[str, ...]
    """What the user typed for it, as Hydra understood it."""
    repeat: NonNegativeInt
    devices: WorldSize | None
    """Devices it asks for; None for all of the host that runs it."""


@dataclass(frozen=True)
class SweepPlan:
    """Every cell of a sweep in the order it was to run."""

    created_at: UnixTime
    """Unix time."""
    command: tuple[str, ...]
    order_seed: int
    """Seed of the shuffle that interleaved the repeats."""
    cells: tuple[PlannedCell, ...]
    policy: str = "exclusive"
    """``exclusive``: one cell at a time on a host; ``packed``: as many as fit."""
    slots: NonNegativeInt | None = None
    """Devices of the host that ran it last; None if nothing ran yet."""


class SweepFolder:
    """A sweep on disk: ``sweep.json``, one folder a cell, ``report/``."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def plan_path(self) -> Path:
        return self.path / "sweep.json"

    @property
    def lock_path(self) -> Path:
        return self.path / "sweep.lock"

    @property
    def report_path(self) -> Path:
        return self.path / "report"

    def save_plan(self, plan: SweepPlan) -> None:
        save_json(self.plan_path, plan)

    def load_plan(self) -> SweepPlan:
        return load_json(self.plan_path, SweepPlan)

    def cell(self, name: str) -> CellFolder:
        return CellFolder(self.path / name)

    def cells(self) -> Iterator[tuple[PlannedCell, CellFolder]]:
        """Every planned cell with its folder, in the plan's order."""
        for planned in self.load_plan().cells:
            yield planned, self.cell(planned.name)
