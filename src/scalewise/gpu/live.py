"""Frames of this host: handed on by the sampler of a running cell, else read here."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import Any

from scalewise.gpu.election import Wish, runtime_folder
from scalewise.gpu.frames import Frame, Owner, identify
from scalewise.gpu.lanes import GPM_METRICS
from scalewise.gpu.nvml import GpuDevice, GpuLost, open_nvml
from scalewise.gpu.peers import Onlooker
from scalewise.gpu.reader import GpuReader
from scalewise.gpu.spool import Reading
from scalewise.records import DeviceProcess, DeviceSample, SampledDevice

_GPM_PAUSE_S = 0.15


class LiveFrames:
    """All GPUs of this host, now.

    NVML serialises on driver locks, so there is one sampler a host: while cells run here, their
    elected sampler reads for this view too, at the finer of both intervals.
    """

    def __init__(self, interval_s: float, *, share: bool = True) -> None:
        """With ``share=False`` everything is read here.

        Raises :class:`~scalewise.gpu.nvml.NvmlUnavailable` where there is no GPU.
        """
        self._reader = GpuReader(open_nvml())
        self._interval_s = interval_s
        self._devices = tuple(_sampled(d) for d in self._reader.devices.values())
        self._driver = self._reader.nvml.driver_version()
        self._identified: dict[int, Owner] = {}
        self._owners: dict[str, tuple[Owner, ...]] = {}
        self._gpm: dict[str, dict[str, Any]] = {}
        self._notes: list[str] = []
        self._begun = False
        self._shared = False
        self._sampler = self._join() if share else None

    @property
    def title(self) -> str:
        """``(shared)`` where a running cell's sampler reads: short, for a line of 80 columns."""
        return f"driver {self._driver}{' (shared)' if self._shared else ''}"

    def _join(self) -> Onlooker | None:
        try:
            wish = Wish(self._interval_s, tuple(self._reader.devices))
            return Onlooker(runtime_folder(), wish)
        except OSError as error:
            self._notes.append(f"running cells cannot be asked: {error}")
            return None

    def once(self) -> Frame:
        """A frame with every lane; GPM compares two readings, so this takes 0.15 s."""
        self._read_here(all_lanes=True)
        time.sleep(_GPM_PAUSE_S)
        return self._frame(self._read_here(all_lanes=True))

    def next(self) -> Frame:
        """A frame; the first one is read here, so that it comes at once and names processes."""
        reading = None
        if self._sampler is not None and self._begun:
            reading = self._sampler.next()
        self._begun = True
        self._shared = reading is not None
        return self._frame(self._read_here() if reading is None else reading)

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.leave()
        self._reader.close()

    def _read_here(self, *, all_lanes: bool = False) -> Reading:
        reader = self._reader
        reading = reader.read(reader.devices, self._interval_s, all_lanes=all_lanes)
        for uuid in reading.samples:
            self._keep_owners(uuid, self._processes(reader.devices[uuid]))
        self._notes += [f"{where}: {reason}" for where, reason in reader.nvml.faults.items()]
        reader.nvml.faults.clear()
        return reading

    def _processes(self, device: GpuDevice) -> tuple[DeviceProcess, ...]:
        try:
            return self._reader.nvml.processes(device) or ()
        except GpuLost:
            return ()  # the next reading says so

    def _frame(self, reading: Reading) -> Frame:
        for uuid, sample in reading.samples.items():
            if self._shared and sample.processes is not None:
                self._keep_owners(uuid, sample.processes)
        notes, self._notes = self._notes, []
        notes += [event.text for event in itertools.chain(*reading.events.values())]
        samples = {uuid: self._with_gpm(s) for uuid, s in reading.samples.items()}
        owners = {uuid: self._owners.get(uuid, ()) for uuid in samples}
        return Frame(reading.time, self._devices, samples, owners, tuple(notes))

    def _with_gpm(self, sample: DeviceSample) -> DeviceSample:
        """GPM is read once a second: between two readings the last one is shown."""
        if sample.sm_activity_percent is not None:
            self._gpm[sample.id] = {name: getattr(sample, name) for name in GPM_METRICS}
            return sample
        return replace(sample, **self._gpm.get(sample.id, {}))

    def _keep_owners(self, uuid: str, processes: tuple[DeviceProcess, ...]) -> None:
        self._owners[uuid] = tuple(self._owner(p.pid, p.memory_mib) for p in processes)

    def _owner(self, pid: int, memory_mib: float | None) -> Owner:
        known = self._identified.get(pid)
        if known is None:
            known = self._identified[pid] = identify(pid)
        return replace(known, memory_mib=memory_mib)


def _sampled(gpu: GpuDevice) -> SampledDevice:
    return SampledDevice(
        gpu.uuid, gpu.index, gpu.name, None, gpu.memory_total_mib, gpu.power_limit_w
    )
