"""What NVML and sysfs say of the GPUs that are examined, and of how they are joined."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

from scalewise.gpu.nvml import GpuDevice, Nvml, NvmlError, NvmlUnavailable, open_nvml
from scalewise.records import DeviceInfo
from scalewise.records.doctor_host import DeviceFacts, PairLink, PcieLink


def describe_devices(
    slots: Sequence[DeviceInfo],
) -> tuple[tuple[DeviceFacts, ...], tuple[PairLink, ...]]:
    """The facts of each device and the link of each pair; NVML's silence is in ``missing``."""
    if not any(slot.kind == "cuda" for slot in slots):
        return tuple(DeviceFacts(slot) for slot in slots), ()
    try:
        with open_nvml() as nvml:
            by_uuid = {gpu.uuid: gpu for gpu in nvml.all_devices()}
            gpus = [by_uuid.get(slot.uuid or "") for slot in slots]
            facts = tuple(_facts(nvml, s, gpu) for s, gpu in zip(slots, gpus, strict=True))
            return facts, tuple(_links(nvml, gpus))
    except NvmlUnavailable as error:
        return tuple(DeviceFacts(slot, missing={"nvml": str(error)}) for slot in slots), ()


def _facts(nvml: Nvml, slot: DeviceInfo, gpu: GpuDevice | None) -> DeviceFacts:
    if gpu is None:
        return DeviceFacts(slot, missing={"nvml": f"NVML does not show {slot.uuid}"})
    try:
        sample = nvml.sample(gpu, slow=True)
    except NvmlError as error:
        return DeviceFacts(slot, gpu.pci_bus_id, gpu.cores, missing={"nvml": str(error)})
    processes = sample.processes
    others = None
    if processes is not None:
        others = sum(p.pid != os.getpid() for p in processes)
    wanted = ("ecc_uncorrected", "remapped_rows", "processes")
    return DeviceFacts(
        slot,
        gpu.pci_bus_id,
        gpu.cores,
        others,
        sample.ecc_uncorrected,
        sample.remapped_rows,
        {name: reason for name, reason in nvml.unavailable.items() if name in wanted},
    )


def _links(nvml: Nvml, gpus: Sequence[GpuDevice | None]) -> list[PairLink]:
    links = []
    for (first, a), (second, b) in combinations(enumerate(gpus), 2):
        if a is None or b is None:
            links.append(PairLink(first, second, None, None))
            continue
        kind, access = _told(nvml.link, a, b), _told(nvml.peer_access, a, b)
        links.append(PairLink(first, second, kind, access))
    return links


def _told(
    question: Callable[[GpuDevice, GpuDevice], str], a: GpuDevice, b: GpuDevice
) -> str | None:
    try:
        return question(a, b)
    except NvmlError:
        return None  # the record's None; a host without this answer is common


def pcie_link(nvml: Nvml, uuid: str) -> PcieLink:
    """The GPU's PCIe link as it is this moment. Raises :class:`NvmlError`.

    Call it while copies are running: an idle link falls back to the first generation.
    """
    api = nvml.api
    try:
        handle = api.nvmlDeviceGetHandleByUUID(uuid)
    except api.NVMLError as error:
        raise NvmlError(f"GPU {uuid} does not answer: {error}") from None
    return PcieLink(
        generation=_number(api, api.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        lanes=_number(api, api.nvmlDeviceGetCurrPcieLinkWidth, handle),
        max_generation=_number(api, api.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        max_lanes=_number(api, api.nvmlDeviceGetMaxPcieLinkWidth, handle),
    )


def _number(api: Any, question: Callable[[Any], int], handle: Any) -> int | None:
    try:
        return int(question(handle)) or None  # 0 is what a virtual machine hides it behind
    except api.NVMLError:
        return None
