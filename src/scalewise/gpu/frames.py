"""What ``scalewise top`` shows, one frame at a time: live, or from a recording."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import psutil

from scalewise.gpu.lanes import GPM_METRICS
from scalewise.gpu.nvml import GpuDevice, GpuLost, open_nvml
from scalewise.gpu.reader import GpuReader
from scalewise.gpu.seed_format import read_seed_file
from scalewise.records import (
    DeviceSample,
    DeviceSeries,
    RecordError,
    SampledDevice,
    read_device_series,
)

_WORKER_MODULE = "scalewise.sweep.worker"
_GPM_PAUSE_S = 0.15


@dataclass(frozen=True)
class Owner:
    """Who a process on a GPU is."""

    pid: int
    name: str
    rank: int | None
    cell: str | None
    """The cell's name, for a rank that scalewise started."""
    memory_mib: float | None


@dataclass(frozen=True)
class Frame:
    """All devices at one moment."""

    time: float
    """Unix time."""
    devices: tuple[SampledDevice, ...]
    samples: Mapping[str, DeviceSample]
    """By device id; a device that is lost is absent."""
    owners: Mapping[str, tuple[Owner, ...]]
    """Processes by device id."""
    notes: tuple[str, ...] = ()
    """What happened, in words."""


class FrameSource(Protocol):
    """Where frames come from."""

    title: str

    def next(self) -> Frame | None:
        """The next frame, or None at the end of a recording."""

    def close(self) -> None: ...


class LiveFrames:
    """All GPUs of this host, read now."""

    def __init__(self, interval_s: float) -> None:
        """Raises :class:`~scalewise.gpu.nvml.NvmlUnavailable` where there is no GPU."""
        self._reader = GpuReader(open_nvml())
        self._interval_s = interval_s
        self._devices = tuple(_sampled(d) for d in self._reader.devices.values())
        self._owners: dict[int, Owner] = {}
        self._gpm: dict[str, dict[str, Any]] = {}
        driver = self._reader.nvml.driver_version()
        self.title = f"driver {driver}"

    def first(self) -> Frame:
        """A frame with every lane; GPM compares two readings, so this takes 0.15 s."""
        self._reader.read(self._reader.devices, self._interval_s, all_lanes=True)
        time.sleep(_GPM_PAUSE_S)
        return self._frame(all_lanes=True)

    def next(self) -> Frame:
        return self._frame(all_lanes=False)

    def close(self) -> None:
        self._reader.close()

    def _frame(self, *, all_lanes: bool) -> Frame:
        reading = self._reader.read(self._reader.devices, self._interval_s, all_lanes=all_lanes)
        nvml = self._reader.nvml
        owners: dict[str, tuple[Owner, ...]] = {}
        for uuid in reading.samples:
            owners[uuid] = self._owners_of(self._reader.devices[uuid])
        said = list(itertools.chain(*reading.problems.values()))
        said += [f"{where}: {reason}" for where, reason in nvml.faults.items()]
        nvml.faults.clear()
        samples = {uuid: self._with_gpm(s) for uuid, s in reading.samples.items()}
        return Frame(reading.time, self._devices, samples, owners, tuple(said))

    def _with_gpm(self, sample: DeviceSample) -> DeviceSample:
        """GPM is read once a second: between two readings the last one is shown."""
        if sample.sm_activity_percent is not None:
            self._gpm[sample.id] = {name: getattr(sample, name) for name in GPM_METRICS}
            return sample
        return replace(sample, **self._gpm.get(sample.id, {}))

    def _owners_of(self, device: GpuDevice) -> tuple[Owner, ...]:
        try:
            processes = self._reader.nvml.processes(device) or ()
        except GpuLost:
            return ()  # the next reading says so
        return tuple(self._owner(p.pid, p.memory_mib) for p in processes)

    def _owner(self, pid: int, memory_mib: float | None) -> Owner:
        known = self._owners.get(pid)
        if known is None:
            known = self._owners[pid] = identify(pid)
        return Owner(pid, known.name, known.rank, known.cell, memory_mib)


class RecordedFrames:
    """A recording: a cell's ``gpu/<host>.jsonl``, or either of seed 003's files."""

    def __init__(self, path: Path) -> None:
        """Raises :class:`~scalewise.records.RecordError` where it cannot be read."""
        series = read_recording(path)
        self.title = f"replay of {path.name}"
        self._frames = _recorded(series)

    def next(self) -> Frame | None:
        return next(self._frames, None)

    def close(self) -> None:
        pass


def read_recording(path: Path) -> DeviceSeries:
    """A device series in scalewise's own format or in one of seed 003's."""
    if path.suffix == ".jsonl":
        try:
            return read_device_series(path)
        except RecordError as own:
            try:
                return read_seed_file(path)
            except RecordError:
                raise own from None
    return read_seed_file(path)


def identify(pid: int) -> Owner:
    """Name, rank and cell of a process; what cannot be read is left out."""
    try:
        process = psutil.Process(pid)
        name, words = process.name(), process.cmdline()
    except psutil.Error:
        # Another user's, or numbered in another pid namespace.
        return Owner(pid, "?", None, None, None)
    cell = None
    if _WORKER_MODULE in words[:-1]:
        cell = Path(words[words.index(_WORKER_MODULE) + 1]).name
    try:
        rank = process.environ().get("RANK", "")
    except psutil.Error:
        rank = ""
    return Owner(pid, _short_name(name, words), int(rank) if rank.isdecimal() else None, cell, None)


def _short_name(name: str, words: Sequence[str]) -> str:
    """``python train.py`` tells more than ``python``."""
    script = next((w for w in words[1:] if w.endswith(".py")), None)
    return f"{name} {os.path.basename(script)}" if script else name  # noqa: PTH119 - not a file here


def _sampled(gpu: GpuDevice) -> SampledDevice:
    return SampledDevice(
        gpu.uuid, gpu.index, gpu.name, None, gpu.memory_total_mib, gpu.power_limit_w
    )


def _recorded(series: DeviceSeries) -> Iterator[Frame]:
    owners: dict[str, tuple[Owner, ...]] = {}
    for when, samples in zip(series.times, series.samples, strict=True):
        for uuid, sample in samples.items():
            if sample.processes is not None:
                owners[uuid] = tuple(
                    Owner(p.pid, "", None, None, p.memory_mib) for p in sample.processes
                )
        yield Frame(when, series.devices, samples, dict(owners))
