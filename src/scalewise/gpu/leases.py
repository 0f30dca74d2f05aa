"""The devices of a host, and which job has which.

A slot is one device: a GPU by UUID, or on a CPU host a fixed share of the cores, so that a
speedup there means what it means on GPUs. A device is leased by a file lock that every process of
the job inherits and that dies with the last of them, so two sweeps on one host never use the same
device at the same time, whatever was killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from scalewise.config import HardwareConfig, choose_gpus, cpu_devices, device_kind
from scalewise.gpu.nvml import GpuDevice, Nvml, NvmlUnavailable, open_nvml
from scalewise.host import FileLock, processor_name, runtime_folder, usable_cores
from scalewise.records import DeviceInfo, DeviceSample

UNSEEN_MIB = 2048.0
"""Held by nobody to be seen, from which a GPU is taken: an idle driver holds several hundred."""

SETTLE_S = 5.0
"""The driver lists a process for a moment after its end."""

_LOOK_EVERY_S = 1.0
_LOOK_AGAIN_S = 0.1
"""While somebody may be just about to vanish: devices lie idle meanwhile."""


_OWN_LEFT = "a process of an earlier cell that has not ended"


class HostMismatch(ValueError):  # noqa: N818 - it says what is wrong, as ValueError does
    """This host cannot run the cell: one line with what was asked, what there is, what to do."""


@dataclass(frozen=True)
class Host:
    """The devices of this host that a hardware profile admits."""

    slots: tuple[DeviceInfo, ...]
    driver: str | None
    topology: dict[str, str]
    """``"0-1": "NV18"`` for each pair of GPUs by index; "?" where NVML does not tell."""
    no_gpu: str | None = None
    """Why there is no GPU; None where there are some."""
    left_out: tuple[DeviceInfo, ...] = ()
    """GPUs of another kind than the profile's, on a host that has some of its kind."""


def discover(hardware: HardwareConfig) -> Host:
    """Find the devices. Raises :class:`HostMismatch` where the profile asks for what is not."""
    cores = usable_cores()
    try:
        with open_nvml() as nvml:
            gpus = visible_devices(nvml, os.environ)
            present = gpu_slots(gpus, cores)
            driver, topology = nvml.driver_version(), nvml.link_matrix(gpus)
            hidden = "; ".join(map(": ".join, nvml.faults.items()))
            reason = None if gpus else hidden or "CUDA_VISIBLE_DEVICES hides every GPU"
    except NvmlUnavailable as error:
        present, driver, topology, reason = (), None, {}, str(error)
    try:
        if device_kind(hardware, present) == "cuda":
            chosen = choose_gpus(hardware, present)
            others = () if hardware.gpus != "all" else tuple(g for g in present if g not in chosen)
            return Host(chosen, driver, topology, None, others)
        if hardware.gpus != "all":
            raise ValueError(f"hardware.gpus: found {list(hardware.gpus)}; allowed: all")
        shares = cpu_devices(hardware, cores)
    except ValueError as error:
        raise HostMismatch(f"{error} ({reason})" if reason else str(error)) from None
    name = processor_name()
    return Host(tuple(DeviceInfo("cpu", name, cores=share) for share in shares), None, {}, reason)


def gpu_slots(gpus: Sequence[GpuDevice], cores: Sequence[int]) -> tuple[DeviceInfo, ...]:
    """One slot a GPU, each with an equal share of the usable cores that are near it."""
    slots = []
    for gpu in gpus:
        near = [core for core in cores if core in gpu.cores] or list(cores)
        neighbours = [other.uuid for other in gpus if other.cores == gpu.cores]
        share = max(1, len(near) // len(neighbours))
        begin = neighbours.index(gpu.uuid) * share
        own = tuple(near[begin : begin + share] or near)
        slots.append(DeviceInfo("cuda", gpu.name, gpu.uuid, gpu.index, own, gpu.memory_total_mib))
    return tuple(slots)


@dataclass(frozen=True)
class Lease(AbstractContextManager["Lease"]):
    """Devices that belong to one job until it is released and its last process has ended."""

    slots: tuple[DeviceInfo, ...]
    locks: tuple[FileLock, ...]

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The locks' file descriptors, which the processes of the job inherit."""
        return tuple(one for lock in self.locks for one in lock.descriptors)

    def release(self) -> None:
        for lock in self.locks:
            lock.release()

    def __exit__(self, *_: object) -> None:
        self.release()


class Leases:
    """Leases the slots of this host to jobs, each slot to one at a time."""

    def __init__(self, occupancy: Occupancy | None = None) -> None:
        """``occupancy`` tells of other people's processes; nobody is asked without."""
        self._in_use: set[str] = set()
        """Units of the slots in use."""
        self._occupancy = occupancy or Occupancy(dict)
        self.name = f"process {os.getpid()}"
        """Who leases, as another one that waits is told."""
        self.holder = ""
        """Who has a device that the last try wanted; empty where it is one of ours."""
        self.foreign: dict[str, str] = {}
        """Users by UUID of the devices that the last try found in use by other people."""
        self.foreign_settles = False
        """Whether some of those devices may be free in a moment: a process may be vanishing."""

    def try_lease(self, slots: Sequence[DeviceInfo], count: int) -> Lease | None:
        """``count`` slots that nobody else uses, or None while there are not as many."""
        taken: list[DeviceInfo] = []
        locks: list[FileLock] = []
        self.foreign, self.foreign_settles, self.holder = {}, False, ""
        for slot in slots:
            if len(taken) == count:
                break
            own = self._try_lock(units(slot))
            if own is None:
                continue
            who = self._occupancy.by(slot)
            if who is not None:
                self.foreign[str(slot.uuid)] = who
                self.foreign_settles |= not self._occupancy.lasts(slot)
                for lock in own:
                    lock.release()
                continue
            taken.append(slot)
            locks += own
        lease = Lease(tuple(taken), tuple(locks))
        if len(taken) < count:
            lease.release()
            return None
        self._in_use |= {unit for slot in taken for unit in units(slot)}
        return lease

    def release(self, lease: Lease) -> None:
        lease.release()
        self._in_use -= {unit for slot in lease.slots for unit in units(slot)}
        self._occupancy.forget()

    def _try_lock(self, wanted: Sequence[str]) -> list[FileLock] | None:
        """Locks on all of ``wanted``, or None where any is in use."""
        if not self._in_use.isdisjoint(wanted):
            return None
        locks = [FileLock(runtime_folder() / f"{unit}.lock") for unit in wanted]
        for lock in locks:
            if not lock.try_acquire(self.name):
                said = lock.holder() or "another sweep"
                self.holder = _OWN_LEFT if said == self.name else said
                for taken in locks:
                    taken.release()
                return None
        return locks


def units(slot: DeviceInfo) -> tuple[str, ...]:
    """The units of a device, in names that every sweep on this host agrees on.

    A GPU is one unit; a CPU device is its cores, because another profile may share them out
    otherwise.
    """
    return (slot.uuid,) if slot.uuid else tuple(f"cpu-{core}" for core in slot.cores)


def read_gpus() -> Mapping[str, DeviceSample]:
    """Memory and processes of every GPU, by UUID; empty where there is no driver.

    Nothing else: devices lie idle meanwhile, and the slow group takes milliseconds a GPU.
    """
    try:
        with open_nvml() as nvml:
            return {
                gpu.uuid: replace(nvml.sample(gpu), processes=nvml.processes(gpu))
                for gpu in nvml.devices()
            }
    except NvmlUnavailable:
        return {}


def occupants(sample: DeviceSample) -> str | None:
    """The users of a GPU that nobody here uses; None for nobody.

    In a container, which cannot see the host's processes, memory in use is the only sign.
    """
    if sample.processes:
        pids = ", ".join(str(process.pid) for process in sample.processes)
        return f"process{'es' if len(sample.processes) > 1 else ''} {pids} of others"
    used = sample.memory_used_mib
    if used is not None and used > UNSEEN_MIB:
        return f"{used:.0f} MiB held by processes that cannot be seen from here"
    return None


@dataclass
class Occupancy:
    """The free devices that others use, looked up once a second at most where that lasts."""

    read: Callable[[], Mapping[str, DeviceSample]] = read_gpus
    clock: Callable[[], float] = time.monotonic
    _samples: Mapping[str, DeviceSample] = field(default_factory=dict)
    _read_at: float | None = None
    _since: dict[str, float] = field(default_factory=dict)

    def by(self, slot: DeviceInfo) -> str | None:
        """The users of a device that we hold the lock of; None for nobody."""
        if slot.kind != "cuda" or slot.uuid is None:
            return None
        now = self.clock()
        settling = any(now - since < SETTLE_S for since in self._since.values())
        pause_s = _LOOK_AGAIN_S if settling else _LOOK_EVERY_S
        if self._read_at is None or now - self._read_at >= pause_s:
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

    def lasts(self, slot: DeviceInfo) -> bool:
        """Whether others have been seen there for longer than a process takes to vanish."""
        since = self._since.get(slot.uuid or "")
        return since is not None and self.clock() - since >= SETTLE_S


def visible_devices(nvml: Nvml, env: Mapping[str, str]) -> tuple[GpuDevice, ...]:
    """The GPUs that CUDA would show, in CUDA's order: NVML ignores ``CUDA_VISIBLE_DEVICES``.

    Entries may be indices, or UUIDs (``GPU-...``) or unique beginnings of one. The first entry that
    names nothing hides itself and all after it; a device named twice hides all of them. Indices are
    NVML's, in PCI bus order: on a host with unlike GPUs, set ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` to
    make CUDA count the same way.
    """
    everything = nvml.devices()
    wanted = env.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return everything
    chosen: list[GpuDevice] = []
    for entry in wanted.split(","):
        device = _find_device(everything, entry.strip())
        if device is None:
            break
        chosen.append(device)
    return tuple(chosen) if len({d.uuid for d in chosen}) == len(chosen) else ()


def _find_device(devices: Sequence[GpuDevice], name: str) -> GpuDevice | None:
    if name.isdecimal():
        matches = [d for d in devices if d.index == int(name)]
    elif name.startswith("GPU-"):
        matches = [d for d in devices if d.uuid.lower().startswith(name.lower())]
    else:
        matches = []
    return matches[0] if len(matches) == 1 else None
