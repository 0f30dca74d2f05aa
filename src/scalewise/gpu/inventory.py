"""Which GPUs and MIG instances a host has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from scalewise.gpu.calls import GpuDevice, NvmlCalls
from scalewise.gpu.errors import GpuLost, words

T = TypeVar("T")

_AFFINITY_WORDS = 16
"""64-bit words of the CPU mask asked for: 1,024 cores."""


def find_gpus(calls: NvmlCalls, count: int) -> tuple[GpuDevice, ...]:
    """Every GPU that answers, in NVML's order; the others are named in ``calls.faults``."""
    found = []
    for index in range(count):
        try:
            handle = calls.api.nvmlDeviceGetHandleByIndex(index)
            found.append(_describe(calls, handle, index))
        except calls.api.NVMLError as error:
            calls.faults[f"GPU {index}"] = words(error)
        except GpuLost as error:
            calls.faults[f"GPU {index}"] = error.reason
    return tuple(found)


def find_mig_instances(calls: NvmlCalls, parent: GpuDevice) -> tuple[GpuDevice, ...]:
    """The MIG instances of a GPU; empty where MIG is off or unknown. Raises GpuLost."""
    api, handle = calls.api, calls.handles[parent.uuid]
    found = []
    try:
        if api.nvmlDeviceGetMigMode(handle)[0] == 0:
            return ()
        slots = api.nvmlDeviceGetMaxMigDeviceCount(handle)
    except api.NVMLError as error:
        calls.classify(error, parent, "mig")
        return ()
    for slot in range(slots):
        try:
            mig = api.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
            ids = (
                int(api.nvmlDeviceGetGpuInstanceId(mig)),
                int(api.nvmlDeviceGetComputeInstanceId(mig)),
            )
        except api.NVMLError as error:
            # Slots are sparse: an unused one is "not found".
            if error.value not in (api.NVML_ERROR_NOT_FOUND, api.NVML_ERROR_INVALID_ARGUMENT):
                calls.classify(error, parent, "mig")
            continue
        found.append(_describe(calls, mig, parent.index, parent.uuid, ids))
    return tuple(found)


def _describe(
    calls: NvmlCalls,
    handle: Any,
    index: int,
    parent_uuid: str | None = None,
    mig_ids: tuple[int, int] | None = None,
) -> GpuDevice:
    api = calls.api
    uuid = str(api.nvmlDeviceGetUUID(handle))
    calls.handles[uuid] = handle
    bare = GpuDevice(index, uuid, uuid, None, None, None, (), parent_uuid, mig_ids)

    def ask(what: str, call: Callable[[Any], T]) -> T | None:
        return calls.attempt(bare, what, call)

    name = ask("name", api.nvmlDeviceGetName)
    total = ask("memory_total_mib", lambda h: api.nvmlDeviceGetMemoryInfo(h).total / 2**20)
    capability = ask("compute_capability", api.nvmlDeviceGetCudaComputeCapability)
    power, bus, mask = None, None, None
    if mig_ids is None:
        power = ask("power_limit_w", lambda h: api.nvmlDeviceGetEnforcedPowerLimit(h) / 1000)
        bus = ask("pci_bus_id", lambda h: str(api.nvmlDeviceGetPciInfo(h).busId))
        mask = ask("cores", lambda h: list(api.nvmlDeviceGetCpuAffinity(h, _AFFINITY_WORDS)))
    return GpuDevice(
        index, uuid, name or uuid, total, power, bus, _cores(mask), parent_uuid, mig_ids, capability
    )


def _cores(mask: list[int] | None) -> tuple[int, ...]:
    """The set bits of NVML's CPU mask, 64 cores a word."""
    return tuple(
        64 * word + bit
        for word, bits in enumerate(mask or [])
        for bit in range(64)
        if bits >> bit & 1
    )
