"""The devices of a host, and which job has which.

A slot is one device: a GPU by UUID, or on a CPU host a fixed share of the cores, so that a
speedup there means what it means on GPUs. A device is leased by a file lock that every process of
the job inherits and that dies with the last of them, so two sweeps on one host never use the same
device at the same time, whatever was killed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec

from scalewise.config import CellConfig, ConfigError
from scalewise.gpu.election import FileLock, runtime_folder
from scalewise.gpu.nvml import GpuDevice, NvmlUnavailable, open_nvml
from scalewise.gpu.select import visible_devices
from scalewise.hardware import HardwareConfig, choose_gpus, cpu_devices, device_kind
from scalewise.host import processor_name, usable_cores
from scalewise.plurals import plural
from scalewise.records import DeviceInfo
from scalewise.sweep.occupancy import Occupancy
from scalewise.train.precision import FP8_CAPABILITY


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
    capabilities: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """CUDA compute capability of each GPU by UUID, where NVML tells."""
    left_out: tuple[DeviceInfo, ...] = ()
    """GPUs of another kind than the profile's, on a host that has some of its kind."""


def discover(hardware: HardwareConfig) -> Host:
    """Find the devices. Raises :class:`HostMismatch` where the profile asks for what is not."""
    cores = usable_cores()
    capabilities: dict[str, tuple[int, int]] = {}
    try:
        with open_nvml() as nvml:
            gpus = visible_devices(nvml, os.environ)
            present = gpu_slots(gpus, cores)
            driver, topology = nvml.driver_version(), nvml.link_matrix(gpus)
            capabilities = {g.uuid: g.compute_capability for g in gpus if g.compute_capability}
            reason = None if gpus else "CUDA_VISIBLE_DEVICES hides every GPU"
    except NvmlUnavailable as error:
        present, driver, topology, reason = (), None, {}, str(error)
    try:
        if device_kind(hardware, present) == "cuda":
            chosen, _ = choose_gpus(hardware, present)
            others = () if hardware.gpus != "all" else tuple(g for g in present if g not in chosen)
            return Host(chosen, driver, topology, None, capabilities, others)
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


def check_precision(cell: CellConfig, host: Host) -> None:
    """Refuse what Lightning would silently replace by another number format.

    Raises :class:`HostMismatch`.
    """
    on_cpu = all(slot.kind == "cpu" for slot in host.slots)
    if on_cpu and cell.precision.lightning == "16-mixed":
        raise HostMismatch(
            f"precision: found {cell.precision.name}, which needs a GPU; allowed here: "
            "bf16-mixed or fp32"
        )
    if cell.precision.fp8:
        _check_fp8(cell, host)


def _check_fp8(cell: CellConfig, host: Host) -> None:
    """Refuse fp8 on devices that have none, and without the library. Raises HostMismatch."""
    name, lowest = cell.precision.name, ".".join(map(str, FP8_CAPABILITY))
    for slot in host.slots:
        capability = host.capabilities.get(slot.uuid or "")
        if slot.kind == "cpu" or (capability is not None and capability < FP8_CAPABILITY):
            have = f", and {slot.name} has {capability[0]}.{capability[1]}" if capability else ""
            raise HostMismatch(
                f"precision: found {name}, which needs a GPU of compute capability {lowest} or "
                f"higher{have}; allowed here: bf16-mixed or fp32"
            )
    if find_spec("torchao") is None:
        raise HostMismatch(
            f"precision: found {name}, which needs torchao; run pip install 'scalewise[fp8]', or "
            "use precision=bf16-mixed"
        )


def check_instruments(cell: CellConfig, host: Host) -> None:
    """Refuse to draw ranges that no profiler could see. Raises :class:`HostMismatch`."""
    if cell.profile.nvtx and all(slot.kind == "cpu" for slot in host.slots):
        raise HostMismatch(
            "profile.nvtx: found true, which needs a GPU; allowed here: false (profile.trace=true "
            "shows the operators of a CPU)"
        )


def check_execution(cell: CellConfig, host: Host) -> None:
    """Refuse a way of executing that this host cannot do. Raises :class:`HostMismatch`."""
    try:
        cell.execution.check_host(host.slots[0].kind)
    except ValueError as error:
        raise HostMismatch(str(error)) from None


def width(cell: CellConfig, available: int) -> int:
    """Devices the cell takes on a host with ``available`` of them.

    Raises :class:`HostMismatch` where there are not enough, and ConfigError where the batch
    cannot be shared by as many.
    """
    wanted = cell.strategy.devices
    if wanted == "auto":
        if available < 2:
            raise HostMismatch(
                f"strategy={cell.strategy.name} with devices=auto needs two devices or more, and "
                f"this host has {available}; use strategy=single here"
            )
        wanted = available
    if wanted > available:
        raise HostMismatch(
            f"strategy.devices: found {wanted}, but this host has {available} "
            f"{plural(available, 'device')}; allowed: at most {available}"
        )
    try:
        cell.per_device_batch_size(wanted)
    except ConfigError as error:
        raise HostMismatch(str(error)) from None
    return wanted


@dataclass(frozen=True)
class Lease:
    """Devices that belong to one job until it is released and its last process has ended."""

    slots: tuple[DeviceInfo, ...]
    locks: tuple[FileLock, ...]

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What the processes of the job are to inherit."""
        return tuple(one for lock in self.locks for one in lock.descriptors)

    def release(self) -> None:
        for lock in self.locks:
            lock.release()


class Leases:
    """Leases the slots of this host to jobs, each slot to one at a time."""

    def __init__(self, occupancy: Occupancy | None = None) -> None:
        self._held: set[str] = set()
        """Units of the slots in use."""
        self._occupancy = occupancy
        self.foreign: dict[str, str] = {}
        """Who, by UUID, has the devices that the last try found in use by other people."""
        self.foreign_lasts = False
        """Whether all of them have been there longer than a process takes to vanish."""

    @property
    def foreign_settles(self) -> bool:
        """Whether those devices may be free in a moment."""
        return bool(self.foreign) and not self.foreign_lasts

    def try_lease(self, slots: Sequence[DeviceInfo], count: int) -> Lease | None:
        """``count`` slots that nobody else uses, or None while there are not as many."""
        taken: list[DeviceInfo] = []
        locks: list[FileLock] = []
        self.foreign, self.foreign_lasts = {}, True
        for slot in slots:
            if len(taken) == count:
                break
            own = self._try_lock(units(slot))
            if own is None:
                continue
            if self._is_foreign(slot):
                for lock in own:
                    lock.release()
                continue
            taken.append(slot)
            locks += own
        lease = Lease(tuple(taken), tuple(locks))
        if len(taken) < count:
            lease.release()
            return None
        self._held |= {unit for slot in taken for unit in units(slot)}
        return lease

    def release(self, lease: Lease) -> None:
        lease.release()
        self._held -= {unit for slot in lease.slots for unit in units(slot)}
        if self._occupancy is not None:
            self._occupancy.forget()

    def _is_foreign(self, slot: DeviceInfo) -> bool:
        """Whether somebody computes on a device that we have just locked."""
        who = None if self._occupancy is None else self._occupancy.by(slot)
        if who is None or self._occupancy is None:
            return False
        self.foreign[str(slot.uuid)] = who
        self.foreign_lasts = self.foreign_lasts and self._occupancy.lasts(slot)
        return True

    def _try_lock(self, wanted: Sequence[str]) -> list[FileLock] | None:
        """Locks on all of ``wanted``, or None where any is in use."""
        if not self._held.isdisjoint(wanted):
            return None
        locks = [FileLock(runtime_folder() / f"{unit}.lock") for unit in wanted]
        if all(lock.try_acquire() for lock in locks):
            return locks
        for lock in locks:
            lock.release()
        return None


def units(slot: DeviceInfo) -> tuple[str, ...]:
    """What a device is made of, in names that every sweep on this host agrees on.

    A GPU is one unit; a CPU device is its cores, because another profile may share them out
    otherwise.
    """
    return (slot.uuid,) if slot.uuid else tuple(f"cpu-{core}" for core in slot.cores)
