"""XIDs: the numbers under which NVIDIA's driver reports that something went wrong with a GPU.

The meanings, and which of them are an application's own doing, follow NVIDIA's XID catalogue
(https://docs.nvidia.com/deploy/xid-errors, read November 2026).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal

from scalewise.gpu.calls import GpuDevice, NvmlCalls

_MEANINGS: Final[Mapping[int, str]] = {
    13: "exception in a kernel",
    31: "memory page fault in a kernel",
    43: "a process stopped the GPU",
    45: "a process was cut off",
    48: "uncorrectable memory error",
    61: "error of the GPU's microcontroller",
    62: "the GPU's microcontroller halted",
    63: "memory row remapped",
    64: "memory row could not be remapped",
    68: "exception in the video processor",
    74: "NVLink error",
    79: "fallen off the bus",
    92: "many corrected memory errors",
    94: "memory error, contained",
    95: "memory error, not contained",
    109: "context switch timed out",
    119: "the GPU's system processor does not answer",
    120: "error of the GPU's system processor",
}
_NO_RESET_NEEDED: Final = frozenset({13, 31, 43, 45, 63, 68, 94})
"""A process did it to itself and is started again, or the driver has mended it."""

_WHOLE_GPU = 0xFFFFFFFF
_MOST_AT_ONCE = 64


def xid_words(xid: int) -> str:
    """``XID 79, fallen off the bus``; the bare number where its meaning is not listed here."""
    meaning = _MEANINGS.get(xid)
    return f"XID {xid}" if meaning is None else f"XID {xid}, {meaning}"


def xid_level(xid: int) -> Literal["warn", "error"]:
    """``warn`` for what leaves the GPU as it was, ``error`` for what it suffers from."""
    return "warn" if xid in _NO_RESET_NEEDED else "error"


class XidWatch:
    """Subscribes to the XIDs of some GPUs; asking for them never waits.

    What the driver refuses (permission, a container) stands in ``calls.unavailable["xid"]``.
    """

    def __init__(self, calls: NvmlCalls, devices: Iterable[GpuDevice]) -> None:
        self._calls = calls
        self._devices: dict[int, list[GpuDevice]] = {}
        """By the address of the whole GPU's handle: the GPU first, then its MIG instances."""
        self._events: Any = None
        for device in devices:
            if device.parent_uuid is None:
                self._register(device)
            else:
                parent = _address(calls.handles[device.parent_uuid])
                self._devices.setdefault(parent, []).append(device)

    def _register(self, device: GpuDevice) -> None:
        api = self._calls.api
        try:
            if self._events is None:
                self._events = api.nvmlEventSetCreate()
            handle = self._calls.handles[device.uuid]
            kinds = api.nvmlDeviceGetSupportedEventTypes(handle)
            if not kinds & api.nvmlEventTypeXidCriticalError:
                raise api.NVMLError(api.NVML_ERROR_NOT_SUPPORTED)
            api.nvmlDeviceRegisterEvents(handle, api.nvmlEventTypeXidCriticalError, self._events)
        except api.NVMLError as error:
            if error.value not in self._calls.kinds.gone:  # else the next sample says so
                self._calls.classify(error, device, "xid")
        else:
            self._devices.setdefault(_address(handle), []).insert(0, device)

    def read(self) -> Iterator[tuple[GpuDevice, int]]:
        """XIDs reported since the last call, for the GPU and the MIG instances they concern."""
        api = self._calls.api
        if self._events is None:
            return
        for _ in range(_MOST_AT_ONCE):
            try:
                event = api.nvmlEventSetWait_v2(self._events, 0)
            except api.NVMLError as error:
                if error.value not in (api.NVML_ERROR_TIMEOUT, *self._calls.kinds.gone):
                    self._forget(error)
                return
            for device in self._concerned(event.device):
                instance = None if device.mig_ids is None else device.mig_ids[0]
                if instance is None or event.gpuInstanceId in (_WHOLE_GPU, instance):
                    yield device, int(event.eventData)

    def _concerned(self, handle: Any) -> list[GpuDevice]:
        known = self._devices.get(_address(handle))
        if known is not None:
            return known
        # A driver may hand out another handle of the same GPU.
        try:
            uuid = self._calls.api.nvmlDeviceGetUUID(handle)
        except self._calls.api.NVMLError:
            return []
        return next((d for d in self._devices.values() if d[0].uuid == uuid), [])

    def _forget(self, error: Any) -> None:
        """It cannot be read after all: said once, and not tried again."""
        for devices in self._devices.values():
            self._calls.classify(error, devices[0], "xid")
        self.close()

    def close(self) -> None:
        if self._events is not None:
            events, self._events = self._events, None
            try:
                self._calls.api.nvmlEventSetFree(events)
            except self._calls.api.NVMLError as error:
                if error.value not in self._calls.kinds.gone:
                    raise


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
