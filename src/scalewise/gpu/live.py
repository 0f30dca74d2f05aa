"""Frames of this host, for ``scalewise top``."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import Any

from scalewise.gpu.frames import Frame, Owner, identify
from scalewise.gpu.lanes import GPM_METRICS
from scalewise.gpu.nvml import GpuDevice, open_nvml
from scalewise.gpu.reader import GpuReader
from scalewise.records import DeviceProcess, DeviceSample, SampledDevice

_GPM_PAUSE_S = 0.15


class LiveFrames:
    """All GPUs of this host, now."""

    def __init__(self, interval_s: float) -> None:
        """Raises :class:`~scalewise.gpu.nvml.NvmlUnavailable` where there is no GPU."""
        self._reader = GpuReader(open_nvml())
        self._interval_s = interval_s
        self._devices = tuple(_sampled(d) for d in self._reader.devices.values())
        self.title = f"driver {self._reader.nvml.driver_version()}"
        self._identified: dict[int, Owner] = {}
        self._owners: dict[str, tuple[Owner, ...]] = {}
        self._gpm: dict[str, dict[str, Any]] = {}

    def once(self) -> Frame:
        """A frame with every lane; GPM compares two readings, so this takes 0.15 s."""
        self.next(all_lanes=True)
        time.sleep(_GPM_PAUSE_S)
        return self.next(all_lanes=True)

    def next(self, *, all_lanes: bool = False) -> Frame:
        reader = self._reader
        reading = reader.read(reader.devices, self._interval_s, all_lanes=all_lanes)
        notes = [f"{where}: {reason}" for where, reason in reader.nvml.faults.items()]
        reader.nvml.faults.clear()
        notes += [event.text for event in itertools.chain(*reading.events.values())]
        for uuid, sample in reading.samples.items():
            if sample.processes is not None:
                self._owners[uuid] = tuple(self._owner(p) for p in sample.processes)
        samples = {uuid: self._with_gpm(s) for uuid, s in reading.samples.items()}
        owners = {uuid: self._owners.get(uuid, ()) for uuid in samples}
        return Frame(reading.time, self._devices, samples, owners, tuple(notes))

    def close(self) -> None:
        self._reader.close()

    def _with_gpm(self, sample: DeviceSample) -> DeviceSample:
        """GPM is read once a second: between two readings the last one is shown."""
        if sample.sm_activity_percent is not None:
            self._gpm[sample.id] = {name: getattr(sample, name) for name in GPM_METRICS}
            return sample
        return replace(sample, **self._gpm.get(sample.id, {}))

    def _owner(self, process: DeviceProcess) -> Owner:
        known = self._identified.get(process.pid)
        if known is None:
            known = self._identified[process.pid] = identify(process.pid)
        return replace(known, memory_mib=process.memory_mib)


def _sampled(gpu: GpuDevice) -> SampledDevice:
    return SampledDevice(
        gpu.uuid, gpu.index, gpu.name, None, gpu.memory_total_mib, gpu.power_limit_w
    )
