"""What became of the sweeps of this process."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from scalewise.sweep.job import Outcome

if TYPE_CHECKING:
    from scalewise.sweep.plan import Cell


@dataclass
class SweepReport:
    """What became of a sweep."""

    folder: Path
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """By cell id."""
    cells: list[Cell] = field(default_factory=list)
    """Those asked for, and those that ``repeats``, ``strategy`` and ``batch_size=auto`` added."""
    chosen: dict[str, str] = field(default_factory=dict)
    """``config_id`` of a request that a first stage decided to that of what was trained for it."""

    def cells_of(self, config_id: str) -> list[Cell]:
        """The cells that answer a request."""
        answered_by = self.chosen.get(config_id, config_id)
        return [cell for cell in self.cells if cell.planned.config_id == answered_by]

    def count(self, state: str) -> int:
        return sum(o.state == state for o in self.outcomes.values())


sweeps_run: list[SweepReport] = []
"""Every sweep this process has run: the entry reports on them and derives its exit status."""


def remember(report: SweepReport) -> None:
    """Add a sweep to :data:`sweeps_run`; a sweeper that asks in batches fills one folder."""
    earlier = next((r for r in sweeps_run if r.folder == report.folder), None)
    if earlier is None:
        sweeps_run.append(report)
    else:
        earlier.outcomes.update(report.outcomes)
        earlier.cells += report.cells
