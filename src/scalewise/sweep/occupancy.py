"""Other people's processes on this host's GPUs.

A device that was just leased and runs nothing of ours should run nothing at all. What the driver
lists there is somebody else's; in a container, which cannot see the host's processes, memory in
use is the only sign of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from scalewise.gpu.nvml import NvmlUnavailable, open_nvml
from scalewise.records import DeviceInfo, DeviceSample

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
