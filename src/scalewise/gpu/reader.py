"""Reads a set of GPUs, lane by lane when each is due, and outlives the loss of any of them."""

from __future__ import annotations

import time
from collections.abc import Iterable

from scalewise.gpu.nvml import GpuDevice, GpuLost, Nvml, NvmlError, open_nvml
from scalewise.gpu.spool import Reading
from scalewise.records import DeviceSample

SLOW_INTERVAL_S = 10.0
GPM_INTERVAL_S = 1.0


class GpuReader:
    """The readings of one host. Not for use by two threads at once."""

    def __init__(self, nvml: Nvml) -> None:
        self.nvml = nvml
        self.devices = {d.uuid: d for d in nvml.all_devices()}
        self._lost: dict[str, GpuDevice] = {}
        self._slow_at = self._gpm_at = self._retried_at = -1e9

    def read(self, uuids: Iterable[str], interval_s: float, *, all_lanes: bool = False) -> Reading:
        """One reading of the GPUs named; ``all_lanes`` reads the slow ones whether due or not."""
        begun = time.perf_counter()
        now = time.monotonic()
        # Half an interval early is nearer to the due time than half an interval late.
        slow = all_lanes or now - self._slow_at > SLOW_INTERVAL_S - interval_s / 2
        gpm = all_lanes or now - self._gpm_at > GPM_INTERVAL_S - interval_s / 2
        self._slow_at = now if slow else self._slow_at
        self._gpm_at = now if gpm else self._gpm_at
        when = time.time()
        problems: dict[str, tuple[str, ...]] = {}
        if self._lost and now - self._retried_at >= SLOW_INTERVAL_S:
            problems.update(self._find_again(now))
        samples: dict[str, DeviceSample] = {}
        for uuid in uuids:
            if uuid in self._lost or uuid not in self.devices:
                continue
            try:
                samples[uuid] = self.nvml.sample(self.devices[uuid], slow=slow, gpm=gpm)
            except GpuLost as error:
                self._lost[uuid] = self.devices[uuid]
                self._retried_at = now
                problems[uuid] = (f"GPU {self.devices[uuid].index} is lost: {error.reason}",)
        cost_ms = 1e3 * (time.perf_counter() - begun)
        return Reading(when, interval_s, cost_ms, slow or gpm, samples, problems)

    def close(self) -> None:
        self.nvml.close()

    def _find_again(self, now: float) -> dict[str, tuple[str, ...]]:
        """Look for lost GPUs: after a driver reload NVML itself has to be opened anew."""
        self._retried_at = now
        known = {d.uuid for d in self.devices.values() if d.uuid not in self._lost}
        try:
            if not known:
                self.nvml.close()
                self.nvml = open_nvml()
            found = {d.uuid: d for d in self.nvml.all_devices() if d.uuid in self._lost}
        except NvmlError:
            return {}  # still gone, which was said when it went
        back: dict[str, tuple[str, ...]] = {}
        for uuid, device in found.items():
            try:
                self.nvml.read_core(device)
            except GpuLost:
                continue
            del self._lost[uuid]
            self.devices[uuid] = device
            back[uuid] = (f"GPU {device.index} answers again",)
        return back
