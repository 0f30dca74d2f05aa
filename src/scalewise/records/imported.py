"""A published result that was measured elsewhere, as it lies in a cell's folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import PositiveFloat, PositiveInt

from scalewise.records.files import WorldSize, load_json, save_json


@dataclass(frozen=True)
class ImportedResult:
    """One published line. What it does not say is None."""

    devices: WorldSize
    global_batch_size: PositiveInt
    step_time_ms: PositiveFloat
    samples_per_s: PositiveFloat
    """As it was published, whatever was counted."""
    communication_ms: float | None = None
    """Published communication a step."""

    @property
    def counted_batch(self) -> float:
        """The samples a step that the published throughput stands for."""
        return self.samples_per_s * self.step_time_ms / 1e3


def imported_path(cell: Path) -> Path:
    return cell / "imported.json"


def save_imported(cell: Path, line: ImportedResult) -> None:
    save_json(imported_path(cell), line)


def load_imported(cell: Path) -> ImportedResult | None:
    """The line beside the records of the cell in folder ``cell``; None where there is none.

    Raises :class:`~scalewise.records.files.RecordError`.
    """
    path = imported_path(cell)
    return load_json(path, ImportedResult) if path.exists() else None
