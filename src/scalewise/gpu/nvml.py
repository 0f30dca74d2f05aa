"""The seam to NVIDIA's management library: the only importer of ``pynvml``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from scalewise.gpu.metrics import GpmGroup, core_group, slow_group
from scalewise.gpu.nvml_queries import (
    GpuDevice,
    NvmlCalls,
    NvmlError,
    NvmlUnavailable,
    find_gpus,
    find_mig_instances,
    link_kind,
    peer_access,
    words,
)
from scalewise.records import DeviceProcess, DeviceSample


def open_nvml() -> Nvml:
    """Load and initialise NVML. Raises :class:`NvmlUnavailable` where that cannot be done."""
    try:
        import pynvml
    except ImportError as error:
        raise NvmlUnavailable(f"nvidia-ml-py is not installed: {error}") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlUnavailable(
            f"no NVIDIA GPU can be read on this host: {words(error)} (NVML error {error.value})"
        ) from None
    nvml = Nvml(pynvml)
    try:
        count = nvml.count()
    except NvmlError as error:
        nvml.close()
        raise NvmlUnavailable(f"no NVIDIA GPU can be read on this host: {error}") from None
    if count == 0:
        nvml.close()
        raise NvmlUnavailable("the NVIDIA driver is loaded, but this host has no GPU")
    return nvml


class Nvml(NvmlCalls):
    """An initialised NVML. One thread at a time; call :meth:`close` when done."""

    def __init__(self, api: Any) -> None:
        super().__init__(api)
        self._core = core_group(api)
        self._slow = slow_group(api)
        self._gpm: dict[str, GpmGroup] = {}

    def __enter__(self) -> Nvml:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        for group in self._gpm.values():
            group.close()
        self._gpm.clear()
        try:
            self.api.nvmlShutdown()
        except self.api.NVMLError as error:
            # After a driver reload there is nothing left to shut down.
            if error.value not in self.gone:
                raise NvmlError(f"shutting NVML down: {words(error)}") from None

    def count(self) -> int:
        """GPUs on this host, lost ones included."""
        return int(self.ask("the number of GPUs", self.api.nvmlDeviceGetCount))

    def driver_version(self) -> str:
        return str(self.ask("the driver version", self.api.nvmlSystemGetDriverVersion))

    def devices(self) -> tuple[GpuDevice, ...]:
        """Every GPU that answers, in NVML's order; the others are named in :attr:`faults`."""
        return find_gpus(self, self.count())

    def all_devices(self) -> tuple[GpuDevice, ...]:
        """Every GPU, each followed by its MIG instances."""
        return tuple(d for gpu in self.devices() for d in (gpu, *find_mig_instances(self, gpu)))

    def sample(self, device: GpuDevice, *, slow: bool = False, gpm: bool = False) -> DeviceSample:
        """The core group, microseconds a GPU, and the slow and the GPM group if asked for.

        Both read the process list, too. GPM compares with the last GPM reading of this device,
        which must be more than 100 ms ago; the first one gives None. Raises :class:`GpuLost`.
        """
        groups = {**self._core, **self._slow} if slow else self._core
        values: dict[str, Any] = {
            metric: self.attempt(device, metric, read) for metric, read in groups.items()
        }
        if slow or gpm:
            # Every second: a cell of a few seconds has to find its own ranks in the list.
            values["processes"] = self.processes(device)
        if gpm:
            values.update(self.attempt(device, "gpm", lambda _: self._gpm_of(device)) or {})
        return DeviceSample(id=device.uuid, **values)

    def processes(self, device: GpuDevice) -> tuple[DeviceProcess, ...] | None:
        """Compute processes on a device; None where NVML does not tell. Raises GpuLost."""
        ask = self.api.nvmlDeviceGetComputeRunningProcesses
        rows = self.attempt(device, "processes", ask)
        if rows is None:
            return None
        used = [None if p.usedGpuMemory is None else p.usedGpuMemory / 2**20 for p in rows]
        return tuple(DeviceProcess(int(p.pid), m) for p, m in zip(rows, used, strict=True))

    def _gpm_of(self, device: GpuDevice) -> dict[str, float]:
        group = self._gpm.get(device.uuid)
        if group is None:
            owner = self.handles[device.parent_uuid or device.uuid]
            instance = device.mig_ids[0] if device.mig_ids else None
            group = self._gpm[device.uuid] = GpmGroup(self.api, owner, instance)
        values, missing = group.read()
        for metric, code in missing.items():
            if not self.is_absent(device, metric):
                self.classify(self.api.NVMLError(code), device, metric)
        return values

    def link(self, a: GpuDevice, b: GpuDevice) -> str:
        """How two GPUs are joined: ``NV18``, ``PIX``, ``PXB``, ``PHB``, ``NODE``, ``SYS``."""
        what = f"the link of GPU {a.index} and GPU {b.index}"
        return self.ask(what, lambda: link_kind(self, a, b))

    def peer_access(self, a: GpuDevice, b: GpuDevice) -> str:
        """``ok`` where ``a`` can read ``b``'s memory directly, else why not."""
        what = f"peer access of GPU {a.index} to GPU {b.index}"
        return self.ask(what, lambda: peer_access(self, a, b))

    def link_matrix(self, gpus: Sequence[GpuDevice]) -> dict[str, str]:
        """``"<index>-<index>"`` to :meth:`link` for every pair; "?" where NVML does not tell."""
        links = {}
        for a, b in combinations(gpus, 2):
            try:
                links[f"{a.index}-{b.index}"] = self.link(a, b)
            except NvmlError:
                links[f"{a.index}-{b.index}"] = "?"
        return links
