"""One examination of a host by ``scalewise doctor``: ``doctor.json``.

None is "not known", and the reason stands in the ``missing`` beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeFloat

from scalewise.records.doctor_host import DeviceFacts, HostFacts, PairLink, PcieLink
from scalewise.records.doctor_rates import (
    CollectiveRate,
    CopyRate,
    GemmRate,
    LaunchCost,
    PairRate,
    Soak,
)
from scalewise.records.files import Rank, UnixTime, load_json, save_json

DOCTOR_FILE = "doctor.json"


@dataclass(frozen=True)
class RankMeasurements:
    """What one rank measured of its own device; rank 0 also has what concerns several."""

    rank: Rank
    stage: str
    """What it was doing when this was written; ``done`` at the end."""
    gemm: tuple[GemmRate, ...] = ()
    copies: tuple[CopyRate, ...] = ()
    launch: tuple[LaunchCost, ...] = ()
    pcie: PcieLink | None = None
    pairs: tuple[PairRate, ...] = ()
    collectives: tuple[CollectiveRate, ...] = ()
    soak: Soak | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall time of each stage."""
    versions: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """Advice with what it rests on."""

    code: str
    severity: Literal["fault", "warning", "note"]
    """``fault``: results are wrong or a device is lost to its peers; ``warning``: slower than
    this hardware can be; ``note``: worth knowing."""
    text: str
    evidence: str
    advice: str
    refuted_by: str
    """The observation that would show this finding to be wrong."""


@dataclass(frozen=True)
class DoctorReport:
    """Everything of one examination."""

    created_at: UnixTime
    duration_s: NonNegativeFloat
    quick: bool
    host: HostFacts
    driver: str | None
    devices: tuple[DeviceFacts, ...]
    links: tuple[PairLink, ...]
    ranks: tuple[RankMeasurements, ...]
    findings: tuple[Finding, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    """What no rank could measure, and why."""

    @property
    def collectives(self) -> tuple[CollectiveRate, ...]:
        return tuple(rate for rank in self.ranks for rate in rank.collectives)

    @property
    def pairs(self) -> tuple[PairRate, ...]:
        return tuple(rate for rank in self.ranks for rate in rank.pairs)


def save_doctor(folder: Path, report: DoctorReport) -> Path:
    """Write ``doctor.json`` into ``folder``, atomically, and return its path."""
    path = folder / DOCTOR_FILE
    save_json(path, report)
    return path


def load_doctor(folder: Path) -> DoctorReport:
    """Raises RecordError where there is none, or none that can be read."""
    return load_json(folder / DOCTOR_FILE, DoctorReport)
