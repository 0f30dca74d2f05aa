"""Reads a set of GPUs, lane by lane when each is due, and outlives the loss of any of them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scalewise.gpu import events
from scalewise.gpu.events import DeviceEvent
from scalewise.gpu.nvml import GpuDevice, GpuLost, Nvml, NvmlError, open_nvml
from scalewise.records import DeviceSample

SLOW_INTERVAL_S = 10.0
GPM_INTERVAL_S = 1.0


@dataclass(frozen=True)
class Reading:
    """One reading of some devices of a host."""

    time: float
    """Unix time."""
    cost_ms: float
    """How long it took for all of them together."""
    samples: Mapping[str, DeviceSample]
    """By UUID; a device that is lost is absent."""
    events: Mapping[str, tuple[DeviceEvent, ...]] = field(default_factory=dict)
    """By UUID, what happened to a device."""


class GpuReader:
    """The readings of one host. Not for use by two threads at once."""

    def __init__(self, nvml: Nvml) -> None:
        self.nvml = nvml
        self.devices = {d.uuid: d for d in nvml.all_devices()}
        self._xids = nvml.watch_xids(tuple(self.devices.values()))
        self._lost: dict[str, GpuDevice] = {}
        self._slow_at: dict[str, float] = {}
        self._gpm_at = self._retried_at = -1e9

    def read(self, uuids: Iterable[str], interval_s: float, *, all_lanes: bool = False) -> Reading:
        """One reading of the GPUs named; ``all_lanes`` reads the slow ones whether due or not."""
        begun, wanted = time.perf_counter(), list(uuids)
        now = time.monotonic()
        # Half an interval early is nearer to the due time than half an interval late.
        gpm = all_lanes or now - self._gpm_at > GPM_INTERVAL_S - interval_s / 2
        self._gpm_at = now if gpm else self._gpm_at
        when = time.time()
        happened: dict[str, list[DeviceEvent]] = {}
        if self._lost and now - self._retried_at >= SLOW_INTERVAL_S:
            for device in self._find_again(now):
                happened.setdefault(device.uuid, []).append(events.back(device.index))
        if gpm:
            for device, xid in self._xids.read():
                if device.uuid in wanted:  # other GPUs are another cell's
                    happened.setdefault(device.uuid, []).append(events.reported(device.index, xid))
        samples: dict[str, DeviceSample] = {}
        present = [u for u in wanted if u in self.devices and u not in self._lost]
        slow = set(present) if all_lanes else self._slow_due(present, now, interval_s)
        for uuid in present:
            try:
                samples[uuid] = self.nvml.sample(self.devices[uuid], slow=uuid in slow, gpm=gpm)
            except GpuLost as error:
                gpu = self._lost[uuid] = self.devices[uuid]
                self._retried_at = now
                happened.setdefault(uuid, []).append(events.lost(gpu.index, error.reason))
        self._slow_at.update(dict.fromkeys(slow, now))
        return Reading(
            when,
            1e3 * (time.perf_counter() - begun),
            samples,
            {uuid: tuple(each) for uuid, each in happened.items()},
        )

    def _slow_due(self, uuids: list[str], now: float, interval_s: float) -> set[str]:
        """GPUs whose slow lane is due, as few in one reading as keeps up with all of them.

        Eight energy counters together take 70 ms or more, and a beat at 10 Hz is 100 ms.
        """
        last = {uuid: self._slow_at.get(uuid, -1e9) for uuid in uuids}
        due = [u for u in uuids if now - last[u] > SLOW_INTERVAL_S - interval_s / 2]
        most = math.ceil(len(uuids) * interval_s / SLOW_INTERVAL_S)
        return set(sorted(due, key=lambda uuid: last[uuid])[:most])

    def close(self) -> None:
        self._xids.close()
        self.nvml.close()

    def _find_again(self, now: float) -> list[GpuDevice]:
        """Look for lost GPUs: after a driver reload NVML itself has to be opened anew."""
        self._retried_at = now
        known = {d.uuid for d in self.devices.values() if d.uuid not in self._lost}
        try:
            if not known:
                self.close()
                self.nvml = open_nvml()
            everything = self.nvml.all_devices()
        except NvmlError:
            return []  # still gone, which was said when it went
        back = [d for d in everything if d.uuid in self._lost and self._answers(d)]
        for device in back:
            del self._lost[device.uuid]
            self.devices[device.uuid] = device
        if back:
            # The old subscription went with the handles.
            self._xids.close()
            self._xids = self.nvml.watch_xids(everything)
        return back

    def _answers(self, device: GpuDevice) -> bool:
        try:
            self.nvml.sample(device)
        except GpuLost:
            return False
        return True
