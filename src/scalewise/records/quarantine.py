"""Devices that a sweep leases no more, with what was found: ``quarantine.json`` in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scalewise.records.files import UnixTime, load_json, save_json

Reason = Literal["errors", "throttling", "slow"]


@dataclass(frozen=True)
class QuarantinedDevice:
    """One device, and the evidence against it."""

    uuid: str
    index: int | None
    """NVML's, on its host."""
    name: str
    host: str
    """As in :attr:`Provenance.host <scalewise.records.Provenance.host>`."""
    reason: Reason
    evidence: str
    """One line with the numbers."""
    cell: str
    """The cell whose records show it."""
    at: UnixTime

    def __str__(self) -> str:
        index = "" if self.index is None else f" {self.index}"
        return f"GPU{index} ({self.uuid}): {self.evidence}"


@dataclass(frozen=True)
class Quarantine:
    """All devices that a sweep has put aside."""

    devices: tuple[QuarantinedDevice, ...] = ()

    @property
    def uuids(self) -> frozenset[str]:
        return frozenset(device.uuid for device in self.devices)


def quarantine_path(sweep: Path) -> Path:
    return sweep / "quarantine.json"


def load_quarantine(sweep: Path) -> Quarantine:
    """Of the sweep in this folder; an empty one where nothing was put aside.

    Raises :class:`~scalewise.records.RecordError` for a file that cannot be read.
    """
    path = quarantine_path(sweep)
    return load_json(path, Quarantine) if path.exists() else Quarantine()


def save_quarantine(sweep: Path, quarantine: Quarantine) -> None:
    save_json(quarantine_path(sweep), quarantine)
