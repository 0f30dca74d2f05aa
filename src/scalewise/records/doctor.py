"""One examination of a host by ``scalewise doctor``: ``doctor.json``.

None is "not known", and the reason stands in the ``missing`` beside it. Bandwidths are in 10^9
bytes a second, sizes in bytes, rates in 10^12 operations a second.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field, NonNegativeFloat, PositiveFloat

from scalewise.records.files import Rank, UnixTime
from scalewise.records.model import DeviceInfo


@dataclass(frozen=True)
class NumaNode:
    node: int
    cores: tuple[int, ...]


@dataclass(frozen=True)
class HostFacts:
    """Limits of the host, read before anything was measured."""

    host: str
    """As in :attr:`Provenance.host <scalewise.records.Provenance.host>`."""
    platform: str
    processor: str
    usable_cores: tuple[int, ...]
    cpu_quota: float | None
    """CPU time per wall time the cgroups allow; None where they set no limit."""
    memory_limit_mib: float | None
    """The cgroups' limit; None where they set none."""
    memory_total_mib: float | None
    memory_available_mib: float | None
    shm_total_mib: float | None
    shm_free_mib: float | None
    numa_nodes: tuple[NumaNode, ...]
    """Empty where the kernel does not tell."""
    cpu_governor: str | None
    cpu_pressure_percent: float | None
    """Share of the last 10 s in which some runnable task waited for a core."""
    environment: Mapping[str, str]
    """NCCL_*, GLOO_*, CUDA_* and their like, as the ranks see them."""
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PcieLink:
    """A GPU's link to the host, read while copies were running: it slows down when idle."""

    generation: int | None
    lanes: int | None
    max_generation: int | None
    """The most that GPU and slot can do together."""
    max_lanes: int | None


@dataclass(frozen=True)
class DeviceFacts:
    """One device that was measured; its rank is its place in the list."""

    device: DeviceInfo
    pci_bus_id: str | None = None
    near_cores: tuple[int, ...] = ()
    """CPU cores on the GPU's NUMA node; empty where the driver does not tell."""
    other_processes: int | None = None
    """Compute processes of others on the GPU before the measurement."""
    ecc_uncorrected: int | None = None
    """Since the driver was loaded."""
    remapped_rows: int | None = None
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PairLink:
    """How two devices are joined, before anything was copied."""

    first: int
    second: int
    kind: str | None
    """As ``nvidia-smi topo`` writes it: NV18, PIX, PXB, PHB, NODE, SYS."""
    peer_access: str | None
    """The driver's word: ``ok``, or why one cannot read the other's memory."""


Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast"]
Backend = Literal["nccl", "gloo"]


@dataclass(frozen=True)
class Timing:
    """Repetitions of one operation after its warm-up."""

    samples_us: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)]
    """Microseconds of one operation: each is the mean of ``iterations`` back to back."""
    iterations: int

    @property
    def median_us(self) -> float:
        return statistics.median(self.samples_us)

    @property
    def spread_percent(self) -> float:
        """From the fastest to the slowest repetition, as a share of the median."""
        return 100 * (max(self.samples_us) - min(self.samples_us)) / self.median_us


def bus_factor(collective: Collective, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests' PERFORMANCE.md defines it.

    All-reduce 2(n-1)/n; all-gather and reduce-scatter (n-1)/n; broadcast 1. With it, a figure can
    be compared with the speed of the links whatever the number of ranks.
    """
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return 1.0 if collective == "broadcast" else (ranks - 1) / ranks


@dataclass(frozen=True)
class CollectiveRate:
    """One collective at one size, timed by its slowest rank."""

    backend: Backend
    collective: Collective
    ranks: int
    bytes: int
    """All-gather: of the whole output. Reduce-scatter: of the whole input."""
    timing: Timing
    algorithm_gb_s: float
    """``bytes`` over the median time."""
    bus_gb_s: float
    """Load of each link if it was used evenly: comparable over numbers of ranks."""
    correct: bool
    """Whether every rank received what it should."""


@dataclass(frozen=True)
class PairRate:
    """Copies between two GPUs, nothing else running."""

    GONE: ClassVar[frozenset[str]] = frozenset({"latency_us"})
    transport: Literal["cuda copy"]
    first: int
    second: int
    bytes: int
    direct: bool
    """Whether CUDA lets one device reach the other's memory."""
    forward: Timing
    """First to second."""
    backward: Timing
    both: Timing
    """``bytes`` each way at once."""
    forward_gb_s: float
    backward_gb_s: float
    both_gb_s: float
    """Both directions together."""
    correct: bool


@dataclass(frozen=True)
class GemmRate:
    """Product of two random square matrices, on all devices at once."""

    precision: Literal["fp32", "tf32", "bf16", "fp16", "fp8"]
    size: int
    """Rows and columns."""
    timing: Timing
    tflops: float


CopyKind = Literal["device", "host", "h2d_pinned", "d2h_pinned", "h2d_pageable", "d2h_pageable"]
"""``device`` and ``host`` copy within one memory and count the bytes read and written."""


@dataclass(frozen=True)
class CopyRate:
    """A copy from one memory to another, or inside one."""

    kind: CopyKind
    together: bool
    """Whether all ranks copied at once; else this one had the host to itself."""
    bytes: int
    timing: Timing
    gb_s: float
    correct: bool


@dataclass(frozen=True)
class LaunchCost:
    """Cost of one operation before it has done anything: an addition to one element."""

    kind: Literal["enqueue", "stream", "graph_kernel", "graph_replay", "round_trip"]
    """``enqueue``: on the host. The others are in older records alone."""
    timing: Timing


@dataclass(frozen=True)
class SoakWindow:
    """A stretch of the endurance run."""

    at_s: float
    """Since its begin."""
    tflops: float
    sm_clock_mhz: float | None
    temperature_c: float | None
    power_w: float | None
    throttle_reasons: tuple[str, ...] | None
    """None where they could not be read."""


@dataclass(frozen=True)
class Soak:
    """Products of matrices without a pause."""

    precision: Literal["fp32", "bf16"]
    size: int
    windows: tuple[SoakWindow, ...]


@dataclass(frozen=True)
class RankMeasurements:
    """One rank's measurements of its device; rank 0 also has those of several."""

    rank: Rank
    stage: str
    """Its stage when this was written; ``done`` at the end."""
    gemm: tuple[GemmRate, ...] = ()
    copies: tuple[CopyRate, ...] = ()
    launch: tuple[LaunchCost, ...] = ()
    pcie: PcieLink | None = None
    pairs: tuple[PairRate, ...] = ()
    collectives: tuple[CollectiveRate, ...] = ()
    soak: Soak | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)


Severity = Literal["fault", "warning", "note"]
"""``fault``: results are wrong or a device is lost to its peers; ``warning``: slower than this
hardware can be; ``note``: worth knowing."""
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@dataclass(frozen=True)
class Finding:
    """Advice with what it rests on."""

    code: str
    severity: Severity
    text: str
    evidence: str
    advice: str
    refuted_by: str
    """The observation that would show this finding to be wrong."""


@dataclass(frozen=True)
class DoctorReport:
    """Everything of one examination."""

    FILE: ClassVar[str] = "doctor.json"
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
    """Measurements that no rank could take, and why."""

    @property
    def failed_ranks(self) -> dict[str, str]:
        """Those that did not end well, as ``rank 1``, and why."""
        return {rank: why for rank, why in self.missing.items() if rank.startswith("rank ")}

    @property
    def collectives(self) -> tuple[CollectiveRate, ...]:
        return tuple(rate for rank in self.ranks for rate in rank.collectives)

    def curve(self, backend: Backend, ranks: int) -> tuple[tuple[int, float], ...]:
        """Bytes and ms of an all-reduce over so many ranks, smallest first; may be empty."""
        asked = backend, "all_reduce", ranks
        found = (r for r in self.collectives if (r.backend, r.collective, r.ranks) == asked)
        return tuple(sorted((rate.bytes, rate.timing.median_us / 1e3) for rate in found))

    @property
    def pairs(self) -> tuple[PairRate, ...]:
        return tuple(rate for rank in self.ranks for rate in rank.pairs)
