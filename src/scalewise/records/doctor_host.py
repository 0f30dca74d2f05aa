"""What ``scalewise doctor`` found on a host before it measured: cores, memory, devices, links.

None is "not known", and the reason stands in the ``missing`` beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scalewise.records.provenance import DeviceInfo


@dataclass(frozen=True)
class NumaNode:
    node: int
    cores: tuple[int, ...]


@dataclass(frozen=True)
class HostFacts:
    """What the host grants, read before anything was measured."""

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
    """Size of /dev/shm."""
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
    """Rank."""
    second: int
    kind: str | None
    """As ``nvidia-smi topo`` writes it: NV18, PIX, PXB, PHB, NODE, SYS."""
    peer_access: str | None
    """The driver's word: ``ok``, or why one cannot read the other's memory."""
