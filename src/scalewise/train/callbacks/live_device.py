"""The devices of a running fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scalewise.gpu.nvml import GpuDevice, NvmlUnavailable, open_nvml
from scalewise.host import processor_name, usable_cores
from scalewise.records import DeviceInfo


def live_device(device: torch.device) -> DeviceInfo:
    """The device this process computes on, with the GPU's UUID where it has one."""
    cores = usable_cores()
    if device.type != "cuda":
        return DeviceInfo("cpu", processor_name(), cores=cores)
    properties = torch.cuda.get_device_properties(device)
    uuid = f"GPU-{properties.uuid}"
    total_mib = properties.total_memory / 2**20
    try:
        with open_nvml() as nvml:
            index = next((d.index for d in nvml.all_devices() if d.uuid == uuid), None)
    except NvmlUnavailable:
        index = None
    return DeviceInfo("cuda", properties.name, uuid, index, cores, total_mib)


def driver_and_links(devices: Sequence[DeviceInfo]) -> tuple[str | None, dict[str, str]]:
    """The driver's version, None without one, and how these GPUs are joined."""
    try:
        with open_nvml() as nvml:
            uuids = {d.uuid for d in devices}
            gpus: list[GpuDevice] = [gpu for gpu in nvml.all_devices() if gpu.uuid in uuids]
            return nvml.driver_version(), nvml.link_matrix(gpus)
    except NvmlUnavailable:
        return None, {}


def gathered(value: Any, world_size: int) -> tuple[Any, ...]:
    """``value`` of every rank, in the order of ranks."""
    if world_size == 1:
        return (value,)
    values: list[Any] = [None] * world_size
    torch.distributed.all_gather_object(values, value)
    return tuple(values)
