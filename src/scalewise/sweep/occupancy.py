"""Other people's processes on this host's GPUs.

A device that was just leased and runs nothing of ours should run nothing at all. What the driver
lists there is somebody else's; in a container, which cannot see the host's processes, memory in
use is the only sign of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from scalewise.gpu.nvml import NvmlUnavailable, open_nvml
from scalewise.records import (
    CellFolder,
    DeviceInfo,
    DeviceSample,
    RecordError,
    read_device_series,
)

UNSEEN_MIB = 2048.0
"""An idle GPU's driver itself may hold several hundred MiB."""
SETTLE_S = 5.0
"""The driver lists a process for a moment after its end."""
_LOOK_EVERY_S = 1.0
_LOOK_AGAIN_S = 0.1
"""While somebody may be just about to vanish: devices lie idle meanwhile."""


def read_gpus() -> Mapping[str, DeviceSample]:
    """Memory and processes of every GPU, by UUID; empty where there is no driver.

    Nothing else: devices lie idle meanwhile, and the slow lane takes milliseconds a GPU.
    """
    try:
        with open_nvml() as nvml:
            return {
                gpu.uuid: replace(nvml.sample(gpu), processes=nvml.processes(gpu))
                for gpu in nvml.all_devices()
            }
    except NvmlUnavailable:
        return {}


def occupants(sample: DeviceSample) -> str | None:
    """Who computes on a GPU that nobody here uses; None for nobody."""
    if sample.processes:
        pids = ", ".join(str(process.pid) for process in sample.processes)
        return f"process{'es' if len(sample.processes) > 1 else ''} {pids} of others"
    used = sample.memory_used_mib
    if used is not None and used > UNSEEN_MIB:
        return f"{used:.0f} MiB held by processes that cannot be seen from here"
    return None


@dataclass
class Occupancy:
    """Which free devices others use, looked up once a second at most where that lasts."""

    read: Callable[[], Mapping[str, DeviceSample]] = read_gpus
    clock: Callable[[], float] = time.monotonic
    _samples: Mapping[str, DeviceSample] = field(default_factory=dict)
    _read_at: float | None = None
    _since: dict[str, float] = field(default_factory=dict)

    def by(self, slot: DeviceInfo) -> str | None:
        """Who uses a device that we hold the lock of; None for nobody."""
        if slot.kind != "cuda" or slot.uuid is None:
            return None
        now = self.clock()
        if self._read_at is None or now - self._read_at >= self._look_every_s(now):
            self._samples, self._read_at = self.read(), now
        sample = self._samples.get(slot.uuid)
        who = None if sample is None else occupants(sample)
        if who is None:
            self._since.pop(slot.uuid, None)
            return None
        self._since.setdefault(slot.uuid, now)
        return f"GPU {slot.index} has {who}"

    def forget(self) -> None:
        """A device was given back: its last sample may show the cell that has just ended there."""
        self._read_at = None

    def _look_every_s(self, now: float) -> float:
        settling = any(now - since < SETTLE_S for since in self._since.values())
        return _LOOK_AGAIN_S if settling else _LOOK_EVERY_S

    def lasts(self, slot: DeviceInfo) -> bool:
        """Whether others have been seen there for longer than a process takes to vanish."""
        since = self._since.get(slot.uuid or "")
        return since is not None and self.clock() - since >= SETTLE_S


def foreign_processes(
    folder: CellFolder, own: Collection[int], sees_host: bool | None = None
) -> tuple[str, ...]:
    """Who else computed on a cell's GPUs while it ran, by its device series.

    ``own`` are the ranks' pids; ``sees_host`` whether the driver's pids mean the same here (None:
    find out). Where they do not, all that can be told is that there were more than one.
    """
    sees_host = _sees_host_pids() if sees_host is None else sees_host
    pids: dict[int, str] = {}
    most: dict[str, int] = {}
    for path in folder.device_series_paths():
        try:
            series = read_device_series(path)
        except RecordError:
            continue  # the report names the file
        for sample in series.samples:
            for uuid, row in sample.items():
                running = [p.pid for p in row.processes or ()]
                most[uuid] = max(most.get(uuid, 0), len(running))
                pids.update(dict.fromkeys(set(running) - set(own), uuid))
    if sees_host:
        return tuple(f"process {pid} on {uuid}" for pid, uuid in sorted(pids.items()))
    return tuple(
        f"{count - 1} other process{'es' if count > 2 else ''} on {uuid}"
        for uuid, count in sorted(most.items())
        if count > 1
    )


_HOST_PID_NAMESPACE = "pid:[4026531836]"
"""The kernel gives the first PID namespace of a host this number (PROC_PID_INIT_INO)."""


def _sees_host_pids() -> bool:
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _HOST_PID_NAMESPACE
    except OSError:
        return False
