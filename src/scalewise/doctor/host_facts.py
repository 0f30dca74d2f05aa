"""Facts of a host and its GPUs, read from the kernel and from NVML before anything is measured.

Nothing here needs a GPU or torch. A reader returns None where it is not told.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import psutil

from scalewise.gpu import GpuDevice, Nvml, NvmlError, NvmlUnavailable, open_nvml
from scalewise.host import (
    cpu_quota,
    host_id,
    kernel_text,
    memory_limit_mib,
    processor_name,
    recorded_in,
    shared_memory_mib,
    usable_cores,
)
from scalewise.records import DeviceFacts, DeviceInfo, HostFacts, NumaNode, PairLink, PcieLink


def host_facts(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> HostFacts:
    """The facts of the host; None where the kernel does not tell, with the reason in ``missing``.

    ``root`` is where /proc and /sys are looked for.
    """
    shm_total_mib, shm_free_mib = shared_memory_mib()
    memory = psutil.virtual_memory()
    nodes = numa_nodes(root / "sys/devices/system/node")
    cores = usable_cores()
    governor = kernel_text(root / f"sys/devices/system/cpu/cpu{cores[0]}/cpufreq/scaling_governor")
    pressure = cpu_pressure_percent(root / "proc/pressure/cpu")
    missing = {
        "shm": "" if shm_total_mib else "/dev/shm is not mounted",
        "numa_nodes": "" if nodes else "the kernel lists no NUMA nodes",
        "cpu_governor": "" if governor else "no cpufreq here (common in virtual machines)",
        "cpu_pressure": "the kernel keeps no pressure figures" if pressure is None else "",
    }
    return HostFacts(
        host=host_id(),
        platform=platform.platform(),
        processor=processor_name(),
        usable_cores=cores,
        cpu_quota=cpu_quota(),
        memory_limit_mib=memory_limit_mib(),
        memory_total_mib=memory.total / 2**20,
        memory_available_mib=memory.available / 2**20,
        shm_total_mib=shm_total_mib,
        shm_free_mib=shm_free_mib,
        numa_nodes=nodes,
        cpu_governor=governor,
        cpu_pressure_percent=pressure,
        environment=recorded_in(environment),
        missing={key: reason for key, reason in missing.items() if reason},
    )


def numa_nodes(folder: Path) -> tuple[NumaNode, ...]:
    """The NUMA nodes with their cores, memory-only nodes included."""
    paths = folder.glob("node[0-9]*")
    read = {int(path.name.removeprefix("node")): kernel_text(path / "cpulist") for path in paths}
    return tuple(NumaNode(n, parse_cpu_list(t)) for n, t in sorted(read.items()) if t is not None)


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """``0-2,8`` as the kernel writes it: (0, 1, 2, 8)."""
    parts = (part.partition("-") for part in text.strip().split(",") if part)
    return tuple(c for first, _, last in parts for c in range(int(first), int(last or first) + 1))


def cpu_pressure_percent(path: Path) -> float | None:
    """Share of the last 10 s in which a task that could run waited for a core, on the machine."""
    found = re.match(r"some avg10=([0-9.]+)", kernel_text(path) or "")
    return found and float(found[1])


def describe_devices(
    slots: Sequence[DeviceInfo],
) -> tuple[tuple[DeviceFacts, ...], tuple[PairLink, ...]]:
    """The facts of each device and the link of each pair; NVML's silence is in ``missing``."""
    if not any(slot.kind == "cuda" for slot in slots):
        return tuple(DeviceFacts(slot) for slot in slots), ()
    try:
        with open_nvml() as nvml:
            by_uuid = {gpu.uuid: gpu for gpu in nvml.devices()}
            gpus = [by_uuid.get(slot.uuid or "") for slot in slots]
            facts = tuple(_facts(nvml, s, gpu) for s, gpu in zip(slots, gpus, strict=True))
            pairs = combinations(enumerate(gpus), 2)
            return facts, tuple(_link(nvml, i, j, a, b) for (i, a), (j, b) in pairs)
    except NvmlUnavailable as error:
        return tuple(DeviceFacts(slot, missing={"nvml": str(error)}) for slot in slots), ()


def _facts(nvml: Nvml, slot: DeviceInfo, gpu: GpuDevice | None) -> DeviceFacts:
    if gpu is None:
        return DeviceFacts(slot, missing={"nvml": f"NVML does not show {slot.uuid}"})
    try:
        sample = nvml.sample(gpu, slow=True)
    except NvmlError as error:
        return DeviceFacts(slot, gpu.pci_bus_id, gpu.cores, missing={"nvml": str(error)})
    wanted, seen = ("ecc_uncorrected", "remapped_rows", "processes"), sample.processes
    others = None if seen is None else sum(one.pid != os.getpid() for one in seen)
    missing = {name: reason for name, reason in nvml.unavailable.items() if name in wanted}
    errors = sample.ecc_uncorrected, sample.remapped_rows
    return DeviceFacts(slot, gpu.pci_bus_id, gpu.cores, others, *errors, missing)


def _link(nvml: Nvml, i: int, j: int, a: GpuDevice | None, b: GpuDevice | None) -> PairLink:
    known = (nvml.link(a, b), nvml.peer_access(a, b)) if a and b else (None, None)
    return PairLink(i, j, *known)


def pcie_link(nvml: Nvml, gpu: GpuDevice) -> PcieLink:
    """The GPU's PCIe link as it is this moment. Raises :class:`GpuLost`.

    Call it while copies are running: an idle link falls back to the first generation.
    """
    kinds = ("CurrPcieLinkGeneration", "CurrPcieLinkWidth", "MaxPcieLinkGeneration",
             "MaxPcieLinkWidth")  # fmt: skip
    asked = ((kind, getattr(nvml.api, f"nvmlDeviceGet{kind}")) for kind in kinds)
    # A virtual machine hides it behind 0.
    return PcieLink(*(nvml.attempt(gpu, kind, question) or None for kind, question in asked))
