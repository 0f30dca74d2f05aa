"""Rehearsals: one rank of N, the others emulated, over links that are not there."""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from scalewise.config.components import option_of, options_of
from scalewise.config.data_parallel import DdpConfig, DeviceKind, ProcessGroupConfig
from scalewise.config.errors import ConfigError, require
from scalewise.records import RecordError, RehearsalRecord, build, load_json, to_plain

if TYPE_CHECKING:
    from scalewise.config.cell import CellConfig
    from scalewise.records import Collective

Points = Annotated[tuple[tuple[PositiveInt, PositiveFloat], ...], Field(min_length=2)]
_SIZES = tuple(2**power for power in range(10, 31))


@dataclass(frozen=True)
class Link:
    """How long collectives take over a link: an all-reduce by its size, all others by its load."""

    name: str
    ranks: Annotated[int, Field(ge=2)]
    """Devices that met in each all-reduce of ``points``."""
    points: Points
    """Bytes and ms, smallest first."""
    source: str
    """Where the points are from."""
    blocks: PositiveInt = 24
    """Thread blocks of a GPU that a collective keeps busy: NCCL's channels."""
    gpu: str = ""
    """``rehearse=auto`` takes the link where a GPU's name has this in it; empty: never."""

    @property
    def through_host(self) -> bool:
        """Whether ranks may meet in, and so share, their host's memory: no faster than PCIe."""
        size, ms = self.points[-1]
        return size * _bus_factor("all_reduce", self.ranks) / ms / 1e6 < _PCIE_GB_S

    def ms(self, collective: Collective, size_bytes: int, ranks: int) -> float:
        """Of a collective over ``ranks`` devices: that of an all-reduce with as much on each link.

        nccl-tests' bus bandwidth (PERFORMANCE.md) is the same for all numbers of ranks and all
        collectives as far as links are what limits them. Between two points time is a straight
        line of the size: a latency and a bandwidth.
        """
        load = size_bytes * (_bus_factor(collective, ranks) / _bus_factor("all_reduce", self.ranks))
        (least, least_ms), (most, most_ms) = self.points[0], self.points[-1]
        if load <= least:
            return least_ms
        if load >= most:
            return most_ms * load / most
        above = bisect_right(self.points, load, key=lambda point: point[0])
        (low, low_ms), (high, high_ms) = self.points[above - 1 : above + 1]
        return low_ms + (high_ms - low_ms) * (load - low) / (high - low)


@functools.cache  # asked in every collective
def _bus_factor(collective: Collective, ranks: int) -> float:
    from scalewise.records import bus_factor  # every cell reads this module, few rehearse

    return bus_factor(collective, ranks)


_PCIE_GB_S = 64
"""A slower link may lead through the host: two H200s without peer-to-peer had 27.5, PCIe 5 63."""


def spelled(override: str) -> str:
    """``rehearse=true`` as ``rehearse=auto``: Hydra takes no truth value for an option."""
    known = {"rehearse=true": "rehearse=auto", "rehearse=false": "rehearse=none"}
    return known.get(override, override)


@dataclass(frozen=True)
class RehearseConfig:
    """The config group ``rehearse``: what this host lacks is rehearsed over a link."""

    name: str = "none"
    """``none``; ``auto``: as the GPUs' name says; ``custom``; ``doctor``; or a known link."""
    all: bool = False
    """Rehearse also what this host has, to be held against it."""
    latency_us: PositiveFloat | None = None
    bus_gb_s: PositiveFloat | None = None
    record: str | None = None
    """Path of a ``doctor.json``, or of the folder that holds it."""
    gpu: str = ""
    ranks: PositiveInt | None = None
    points: Points | None = None
    source: str = ""
    blocks: PositiveInt = 24

    def __post_init__(self) -> None:
        require("all", self.all, self.on or not self.all, "false", "rehearse=none")
        sizes = [size for size, _ in self.points or ()]
        rising = sizes == sorted(set(sizes))
        require("points", f"{sizes[:3]} ...", rising, "bytes from small to large, each once")

    @property
    def on(self) -> bool:
        return self.name != "none"

    def link(self, gpus: str, key: str = "rehearse=") -> Link:
        """The link that is meant, on a host of such ``gpus``. Raises :class:`ConfigError`, which
        names others after ``key``."""
        if self.name == "auto":
            own = next((one for one in _links() if one.gpu and one.gpu in gpus), None)
            if own is None:
                ways = way_to_rehearse(gpus, key)
                raise ConfigError(f"rehearse: no link of {gpus} is known; allowed: {ways}")
            return own.link(gpus)
        if self.name == "doctor" and self.record is None:
            raise ConfigError(
                "rehearse.record: found null; allowed: what scalewise doctor --out FOLDER wrote "
                "(rehearse.record=FOLDER, or --link FOLDER/doctor.json of scalewise run)"
            )
        absent = [key for key in ("latency_us", "bus_gb_s") if getattr(self, key) is None]
        if self.name == "custom" and absent:
            raise ConfigError(f"rehearse.{absent[0]}: found null; allowed: a number")
        if self.record is not None:
            return _examined(self.record)
        if self.latency_us is not None and self.bus_gb_s is not None:
            latency_ms, bytes_per_ms = self.latency_us / 1e3, self.bus_gb_s * 1e6
            points = tuple((size, latency_ms + size / bytes_per_ms) for size in _SIZES)
            source = f"{self.latency_us:g} us and {self.bus_gb_s:g} GB/s, as typed"
            return Link(self.name, 2, points, source, self.blocks)
        if self.points is None or self.ranks is None:
            others = ", ".join(options_of("rehearse"))
            raise ConfigError(f"rehearse: found {self.name!r} without points; allowed: {others}")
        return Link(self.name, self.ranks, self.points, self.source, self.blocks, self.gpu)


@functools.cache
def _links() -> Sequence[RehearseConfig]:
    return [build(RehearseConfig, option_of("rehearse", name)) for name in options_of("rehearse")]


def way_to_rehearse(gpus: str, key: str, alone: str = "") -> str:
    """What rehearses on such GPUs: ``alone`` over their own link, else links named by ``key``."""
    if alone and any(one.gpu and one.gpu in gpus for one in _links()):
        return alone
    named = (f"{key}{one.name}" for one in _links() if one.points)
    return " or ".join([*named, f"{key}doctor with a record of this host (rehearse.record=FOLDER)"])


def _examined(path: str) -> Link:
    from scalewise.records import DoctorReport

    record = Path(path, DoctorReport.FILE) if Path(path).is_dir() else Path(path)
    try:
        report = load_json(record, DoctorReport)
    except RecordError as error:
        raise ConfigError(f"rehearse.record: {error}; allowed: a doctor.json") from error
    measured = {rate.ranks for rate in report.collectives if rate.backend == "nccl"}
    for ranks in sorted(measured, reverse=True):
        points = report.curve("nccl", ranks)
        if len(points) > 1:
            gpus = ", ".join(sorted({one.device.name for one in report.devices}))
            # Not the path: moved, the same curve is the same link, and a resumed sweep the same.
            return Link("doctor", ranks, points, f"{ranks} {gpus}, by scalewise doctor")
    raise ConfigError(
        f"rehearse.record: found {path}, which has no all-reduce over NCCL; allowed: an "
        "examination of a host with two GPUs or more"
    )


NO_REHEARSAL = RehearseConfig()


@dataclass(frozen=True, kw_only=True)
class RehearsalConfig(ProcessGroupConfig):
    """What ``rehearse`` makes of a strategy on more devices than there are.

    It takes one device. Its rank has the shard and the share of the batch of one of ``ranks``.
    """

    FEWEST_DEVICES: ClassVar[int] = 1

    ranks: Annotated[int, Field(ge=2)]
    """Devices that are rehearsed."""
    link: Link

    @property
    def record(self) -> RehearsalRecord:
        return RehearsalRecord(self.ranks, self.link.name, self.link.source)

    def team(self, devices: int) -> int:
        return self.ranks

    def backend_for(self, device_kind: DeviceKind) -> Literal["rehearsal"]:
        return "rehearsal"


@dataclass(frozen=True, kw_only=True)
class DdpRehearsalConfig(RehearsalConfig, DdpConfig):
    """Of ``strategy=ddp``."""

    KIND: ClassVar[str] = "rehearsal"


REHEARSALS: Mapping[str, str] = {"ddp": DdpRehearsalConfig.KIND, "fsdp": "fsdp_rehearsal"}
"""By the kind of a strategy that can be rehearsed, what it is then."""


def rehearsed(cell: CellConfig) -> RehearsalConfig | None:
    """The settings of a rehearsal; None of a cell that runs for real."""
    return cell.strategy if isinstance(cell.strategy, RehearsalConfig) else None


def as_rehearsal(plain: Mapping[str, Any], ranks: int, link: Link) -> dict[str, Any]:
    """``plain``, which asks for ``ranks`` devices, as a rehearsal over ``link``."""
    strategy = {
        **plain["strategy"],
        "kind": REHEARSALS[plain["strategy"]["kind"]],
        "name": f"{plain['strategy']['name']}{ranks}_rehearsed_{link.name}",
        "devices": 1,
        "ranks": ranks,
        "link": to_plain(link),
    }
    return {**plain, "strategy": strategy}
