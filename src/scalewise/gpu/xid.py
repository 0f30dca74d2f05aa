"""The driver's reports of errors (XIDs), and alerts about conditions of a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from scalewise.gpu.metrics import MEANINGS
from scalewise.gpu.nvml import GpuDevice, Nvml
from scalewise.records import Alert, DeviceSample, SampledDevice

PATIENCE: Final = 10
"""Samples in a row with a harmless reason until it is worth an alert."""

_MOST_AT_ONCE = 64

NEARLY_FULL: Final = 0.95  # Share of a GPU's memory in use from which it is an alert.
_CHOSEN: Final = frozenset({"application clocks", "display clock setting"})
_COMMON: Final = frozenset({"power cap", "sync boost"})
Level = Literal["warn", "error"]

_XIDS: Final[Mapping[int, tuple[Level, str]]] = {
    int(number): (level, meaning)
    for level, known in MEANINGS["xid"].items()
    for number, meaning in known.items()
}
"""What NVIDIA's errors mean; one that leaves the GPU as it was is a warning."""

_COUNTERS: Final[Mapping[str, tuple[Level, str]]] = {
    "ecc_corrected": ("warn", "corrected memory errors"),
    "ecc_uncorrected": ("error", "uncorrected memory errors"),
    "remapped_rows": ("warn", "memory rows remapped"),
}


@dataclass(frozen=True)
class DeviceEvent:
    """A device was lost, or the driver reported an error of it."""

    text: str
    xid: int | None = None
    """The driver's number of the error; None for a device that is lost."""


def xid_words(xid: int) -> str:
    """``XID 79, fallen off the bus``; the bare number where its meaning is not listed here."""
    return f"XID {xid}, {_XIDS[xid][1]}" if xid in _XIDS else f"XID {xid}"


class XidWatch:
    """Subscribes to the XIDs of some GPUs; asking for them never waits.

    What the driver refuses (permission, a container) stands in ``calls.unavailable["xid"]``.
    """

    def __init__(self, calls: Nvml, devices: Iterable[GpuDevice]) -> None:
        self._calls = calls
        self._devices: dict[int, GpuDevice] = {}
        """By the address of its handle."""
        self._events: Any = None
        for device in devices:
            self._register(device)

    def _register(self, device: GpuDevice) -> None:
        api = self._calls.api
        try:
            if self._events is None:
                self._events = api.nvmlEventSetCreate()
            handle = self._calls.handles[device.uuid]
            if not api.nvmlDeviceGetSupportedEventTypes(handle) & api.nvmlEventTypeXidCriticalError:
                raise api.NVMLError(api.NVML_ERROR_NOT_SUPPORTED)
            api.nvmlDeviceRegisterEvents(handle, api.nvmlEventTypeXidCriticalError, self._events)
        except api.NVMLError as error:
            if error.value not in self._calls.gone:  # else the next sample says so
                self._calls.classify(error, device, "xid")
        else:
            self._devices[_address(handle)] = device

    def read(self) -> Iterator[tuple[GpuDevice, int]]:
        """XIDs reported since the last call, for the GPU they concern."""
        api = self._calls.api
        if self._events is None:
            return
        for _ in range(_MOST_AT_ONCE):
            try:
                event = api.nvmlEventSetWait_v2(self._events, 0)
            except api.NVMLError as error:
                if error.value not in (api.NVML_ERROR_TIMEOUT, *self._calls.gone):
                    self._forget(error)
                return
            if device := self._devices.get(_address(event.device)):
                yield device, int(event.eventData)

    def _forget(self, error: Any) -> None:
        for device in self._devices.values():
            self._calls.classify(error, device, "xid")
        self.close()

    def close(self) -> None:
        if self._events is not None:
            events, self._events = self._events, None
            try:
                self._calls.api.nvmlEventSetFree(events)
            except self._calls.api.NVMLError as error:
                if error.value not in self._calls.gone:
                    raise


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


class DeviceAlerts:
    """Conditions of a GPU that a person should look at, each said once.

    * throttling: heat, a power brake or a hardware slowdown at first sight; a power cap or sync
      boost only after ten samples in a row, because a busy GPU touches its cap now and then.
      Clocks that somebody chose are no alert;
    * memory errors: a counter rose while the cell ran (what was counted before is history);
    * memory nearly full: over 95 % used;
    * lost: the GPU stopped answering;
    * XID: the driver reported an error of the GPU.
    """

    def __init__(self) -> None:
        self._said: set[tuple[str, str]] = set()
        self._in_a_row: dict[tuple[str, str], int] = {}
        self._counted: dict[tuple[str, str], int] = {}

    def check(self, when: float, device: SampledDevice, sample: DeviceSample) -> Iterator[Alert]:
        """Alerts that this sample, taken at Unix time ``when``, gives rise to."""
        yield from self._new(device, self._throttling(when, device, sample))
        yield from self._new(device, self._memory(when, device, sample))

    def happened(self, when: float, device: SampledDevice, event: DeviceEvent) -> Iterator[Alert]:
        """Alerts that an event at Unix time ``when`` gives rise to."""
        found = Alert(when, "error", "lost", device.id, "lost", event.text)
        if event.xid is not None:
            level, _ = _XIDS.get(event.xid, ("error", ""))
            found = Alert(when, level, "xid", device.id, xid_words(event.xid), event.text)
        yield from self._new(device, [found])

    def _new(self, device: SampledDevice, found: Iterable[Alert]) -> Iterator[Alert]:
        """Those that were not said of the device; their titles then name it."""
        for alert in found:
            if (device.id, alert.title) not in self._said:
                self._said.add((device.id, alert.title))
                # WandB takes titles of less than 64 characters.
                yield replace(alert, title=f"GPU {device.index}: {alert.title}"[:63])

    def _throttling(
        self, when: float, device: SampledDevice, sample: DeviceSample
    ) -> Iterator[Alert]:
        reasons = sample.throttle_reasons
        if reasons is None:
            return
        for reason in _COMMON:
            key = (device.id, reason)
            self._in_a_row[key] = self._in_a_row.get(key, 0) + 1 if reason in reasons else 0
        for reason in reasons:
            if reason in _CHOSEN or self._in_a_row.get((device.id, reason), PATIENCE) < PATIENCE:
                continue
            clock = "" if sample.sm_clock_mhz is None else f" at {sample.sm_clock_mhz:.0f} MHz"
            heat = "" if sample.temperature_c is None else f", {sample.temperature_c:.0f} °C"
            power = "" if sample.power_w is None else f", {sample.power_w:.0f} W"
            name = f"held back by {reason}"
            text = f"{device.name} {device.index} is {name}{clock}{heat}{power}"
            yield Alert(when, "warn", "throttling", device.id, name, text)

    def _memory(self, when: float, device: SampledDevice, sample: DeviceSample) -> Iterator[Alert]:
        gpu = f"{device.name} {device.index}"
        for metric, (level, words) in _COUNTERS.items():
            count = getattr(sample, metric)
            if count is None:
                continue
            before = self._counted.setdefault((device.id, metric), count)
            if count > before:
                text = f"{gpu}: {count - before} {words} while this cell ran"
                yield Alert(when, level, "ecc", device.id, words, text)
        used, total = sample.memory_used_mib, device.memory_total_mib
        if used is not None and total and used > NEARLY_FULL * total:
            text = (
                f"{gpu}: {used:,.0f} of {total:,.0f} MiB used ({used / total:.1%}); "
                "a smaller batch_size leaves room"
            )
            yield Alert(when, "warn", "memory", device.id, "memory nearly full", text)
