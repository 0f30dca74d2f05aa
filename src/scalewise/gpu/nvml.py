"""The seam to NVIDIA's management library: the only importer of ``pynvml``.

Errors fall into four classes, told apart here and nowhere else:

* *not there* (not supported, function not found, permission refused): the metric is None from
  then on, and its reason stands once in :attr:`Nvml.unavailable`;
* *gone* (fell off the bus, needs a reset, driver unloaded or replaced): :class:`GpuLost`;
* *no NVML at all*: :class:`NvmlUnavailable`;
* anything else is an error: :class:`NvmlError` from a single question; inside a sample that value
  is None and the error is kept in :attr:`Nvml.faults`, so that the other values survive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from scalewise.gpu.lanes import GPM_METRICS, GpmLane, Read, core_lane, slow_lane
from scalewise.gpu.topology import link_kind, peer_access
from scalewise.records import DeviceProcess, DeviceSample

T = TypeVar("T")

_AFFINITY_WORDS = 16
"""64-bit words of the CPU mask asked for: 1,024 cores."""


class NvmlError(Exception):
    """NVML answered with an error that is neither "not there" nor "gone"."""


class NvmlUnavailable(NvmlError):  # noqa: N818 - named for what happened, as below
    """This host has no NVIDIA driver, or no GPU that can be read. One line says which."""


class GpuLost(NvmlError):  # noqa: N818
    """A GPU stopped answering: fell off the bus, needs a reset, or its driver went away."""

    def __init__(self, uuid: str, reason: str) -> None:
        super().__init__(f"GPU {uuid} is lost: {reason}")
        self.uuid = uuid
        self.reason = reason


@dataclass(frozen=True)
class GpuDevice:
    """What does not change about a GPU, or about a MIG instance of one."""

    index: int
    """NVML's index of the (parent) GPU, in PCI bus order."""
    uuid: str
    name: str
    memory_total_mib: float | None
    power_limit_w: float | None
    pci_bus_id: str | None
    cores: tuple[int, ...] = ()
    """CPU cores close to the GPU; empty where NVML does not tell."""
    parent_uuid: str | None = None
    """The GPU a MIG instance is a part of; None for a whole GPU."""
    mig_ids: tuple[int, int] | None = None
    """GPU instance and compute instance of a MIG device."""


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
            f"no NVIDIA GPU can be read on this host: {_words(error)} (NVML error {error.value})"
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


class Nvml:
    """An initialised NVML. One thread at a time; call :meth:`close` when done."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self.unavailable: dict[str, str] = {}
        """Metric to the reason it cannot be read; filled as metrics are first asked for."""
        self.faults: dict[str, str] = {}
        """``GPU <index> <metric>`` to the last unexpected error inside a sample."""
        self._handles: dict[str, Any] = {}
        self._absent: set[tuple[str, str]] = set()
        self._core = core_lane(api)
        self._slow = slow_lane(api)
        self._gpm: dict[str, GpmLane] = {}
        self._not_there = {
            api.NVML_ERROR_NOT_SUPPORTED,
            api.NVML_ERROR_FUNCTION_NOT_FOUND,
            api.NVML_ERROR_NO_PERMISSION,
        }
        self._gone = {
            api.NVML_ERROR_GPU_IS_LOST,
            api.NVML_ERROR_RESET_REQUIRED,
            api.NVML_ERROR_GPU_NOT_FOUND,
            api.NVML_ERROR_DRIVER_NOT_LOADED,
            api.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
            api.NVML_ERROR_UNINITIALIZED,
        }

    def __enter__(self) -> Nvml:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        for lane in self._gpm.values():
            lane.close()
        self._gpm.clear()
        try:
            self.api.nvmlShutdown()
        except self.api.NVMLError as error:
            # After a driver reload there is nothing left to shut down.
            if error.value not in self._gone:
                raise NvmlError(f"shutting NVML down: {_words(error)}") from None

    # What there is

    def count(self) -> int:
        """GPUs on this host, lost ones included."""
        return int(self._ask("the number of GPUs", self.api.nvmlDeviceGetCount))

    def driver_version(self) -> str:
        return str(self._ask("the driver version", self.api.nvmlSystemGetDriverVersion))

    def devices(self) -> tuple[GpuDevice, ...]:
        """Every GPU that answers, in NVML's order; the others are named in :attr:`faults`."""
        found = []
        for index in range(self.count()):
            try:
                handle = self.api.nvmlDeviceGetHandleByIndex(index)
                found.append(self._describe(handle, index))
            except self.api.NVMLError as error:
                self.faults[f"GPU {index}"] = _words(error)
            except GpuLost as error:
                self.faults[f"GPU {index}"] = error.reason
        return tuple(found)

    def mig_devices(self, parent: GpuDevice) -> tuple[GpuDevice, ...]:
        """The MIG instances of a GPU; empty where MIG is off or unknown."""
        api, handle = self.api, self._handles[parent.uuid]
        found = []
        try:
            if api.nvmlDeviceGetMigMode(handle)[0] == 0:
                return ()
            slots = api.nvmlDeviceGetMaxMigDeviceCount(handle)
        except api.NVMLError as error:
            self._classify(error, parent, "mig")
            return ()
        for slot in range(slots):
            try:
                mig = api.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
                ids = (
                    int(api.nvmlDeviceGetGpuInstanceId(mig)),
                    int(api.nvmlDeviceGetComputeInstanceId(mig)),
                )
            except api.NVMLError as error:
                # Slots are sparse: an unused one is "not found".
                if error.value not in (api.NVML_ERROR_NOT_FOUND, api.NVML_ERROR_INVALID_ARGUMENT):
                    self._classify(error, parent, "mig")
                continue
            found.append(self._describe(mig, parent.index, parent.uuid, ids))
        return tuple(found)

    def all_devices(self) -> tuple[GpuDevice, ...]:
        """Every GPU, each followed by its MIG instances."""
        return tuple(d for gpu in self.devices() for d in (gpu, *self.mig_devices(gpu)))

    # Readings

    def read_core(self, device: GpuDevice) -> DeviceSample:
        """The core lane: microseconds a GPU. Raises :class:`GpuLost`."""
        return self.sample(device)

    def sample(self, device: GpuDevice, *, slow: bool = False, gpm: bool = False) -> DeviceSample:
        """The core lane, with the slow lane and the GPM lane (Hopper's counters) if asked for.

        GPM compares with the last GPM reading of this device, which must be more than 100 ms ago;
        the first one gives None. Raises :class:`GpuLost`.
        """
        values: dict[str, Any] = {}
        self._read_lane(device, self._core, values)
        if slow:
            self._read_lane(device, self._slow, values)
            values["processes"] = self.processes(device)
        if gpm and (device.uuid, "gpm") not in self._absent:
            values.update(self._attempt(device, "gpm", lambda _: self._read_gpm(device)) or {})
        return DeviceSample(id=device.uuid, **values)

    def processes(self, device: GpuDevice) -> tuple[DeviceProcess, ...] | None:
        """Compute processes on a device; None where NVML does not tell. Raises GpuLost."""
        rows = self._attempt(device, "processes", self.api.nvmlDeviceGetComputeRunningProcesses)
        if rows is None:
            return None
        used = [None if p.usedGpuMemory is None else p.usedGpuMemory / 2**20 for p in rows]
        return tuple(DeviceProcess(int(p.pid), m) for p, m in zip(rows, used, strict=True))

    def link(self, a: GpuDevice, b: GpuDevice) -> str:
        """How two GPUs are joined: ``NV18``, ``PIX``, ``PXB``, ``PHB``, ``NODE``, ``SYS``."""
        return self._ask(
            f"the link of GPU {a.index} and GPU {b.index}",
            lambda: link_kind(self.api, self._handles[a.uuid], self._handles[b.uuid]),
        )

    def peer_access(self, a: GpuDevice, b: GpuDevice) -> str:
        """``ok`` where ``a`` can read ``b``'s memory directly, else why not."""
        return self._ask(
            f"peer access of GPU {a.index} to GPU {b.index}",
            lambda: peer_access(self.api, self._handles[a.uuid], self._handles[b.uuid]),
        )

    def link_matrix(self, gpus: Sequence[GpuDevice]) -> dict[str, str]:
        """``"<index>-<index>"`` to :meth:`link` for every pair; "?" where NVML does not tell."""
        links = {}
        for i, a in enumerate(gpus):
            for b in gpus[i + 1 :]:
                try:
                    links[f"{a.index}-{b.index}"] = self.link(a, b)
                except NvmlError:
                    links[f"{a.index}-{b.index}"] = "?"
        return links

    # Inside

    def _describe(
        self,
        handle: Any,
        index: int,
        parent_uuid: str | None = None,
        mig_ids: tuple[int, int] | None = None,
    ) -> GpuDevice:
        api = self.api
        uuid = str(api.nvmlDeviceGetUUID(handle))
        self._handles[uuid] = handle
        bare = GpuDevice(index, uuid, uuid, None, None, None, (), parent_uuid, mig_ids)

        def ask(what: str, call: Callable[[Any], T]) -> T | None:
            return self._attempt(bare, what, call)

        name = ask("name", api.nvmlDeviceGetName)
        total = ask("memory_total_mib", lambda h: api.nvmlDeviceGetMemoryInfo(h).total / 2**20)
        power, bus, mask = None, None, None
        if mig_ids is None:
            power = ask("power_limit_w", lambda h: api.nvmlDeviceGetEnforcedPowerLimit(h) / 1000)
            bus = ask("pci_bus_id", lambda h: str(api.nvmlDeviceGetPciInfo(h).busId))
            mask = ask("cores", lambda h: list(api.nvmlDeviceGetCpuAffinity(h, _AFFINITY_WORDS)))
        return GpuDevice(
            index, uuid, name or uuid, total, power, bus, _cores(mask), parent_uuid, mig_ids
        )

    def _read_lane(self, device: GpuDevice, lane: dict[str, Read], into: dict[str, Any]) -> None:
        handle = self._handles[device.uuid]
        for metric, read in lane.items():
            if (device.uuid, metric) in self._absent:
                continue
            try:
                into[metric] = read(handle)
            except self.api.NVMLError as error:
                self._classify(error, device, metric)

    def _read_gpm(self, device: GpuDevice) -> dict[str, float]:
        lane = self._gpm.get(device.uuid)
        if lane is None:
            owner = self._handles[device.parent_uuid or device.uuid]
            instance = device.mig_ids[0] if device.mig_ids else None
            lane = self._gpm[device.uuid] = GpmLane(self.api, owner, instance)
        values, missing = lane.read()
        for metric, code in missing.items():
            if (device.uuid, metric) not in self._absent:
                self._classify(self.api.NVMLError(code), device, metric)
        return values

    def _attempt(self, device: GpuDevice, metric: str, call: Callable[[Any], T]) -> T | None:
        if (device.uuid, metric) in self._absent:
            return None
        try:
            return call(self._handles[device.uuid])
        except self.api.NVMLError as error:
            self._classify(error, device, metric)
            return None

    def _ask(self, what: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except self.api.NVMLError as error:
            raise NvmlError(f"NVML could not tell {what}: {_words(error)}") from None

    def _classify(self, error: Any, device: GpuDevice, metric: str) -> None:
        if error.value in self._gone:
            raise GpuLost(device.uuid, _words(error)) from None
        # Some calls find the handle of a MIG instance invalid where they do not support it.
        unfit = device.mig_ids is not None and error.value == self.api.NVML_ERROR_INVALID_ARGUMENT
        if unfit or error.value in self._not_there:
            self._absent.add((device.uuid, metric))
            for name in GPM_METRICS if metric == "gpm" else (metric,):
                self.unavailable.setdefault(name, f"{_words(error)} (GPU {device.index})")
        else:
            self.faults[f"GPU {device.index} {metric}"] = _words(error)


def _cores(mask: list[int] | None) -> tuple[int, ...]:
    """The set bits of NVML's CPU mask, 64 cores a word."""
    return tuple(
        64 * word + bit
        for word, bits in enumerate(mask or [])
        for bit in range(64)
        if bits >> bit & 1
    )


def _words(error: Any) -> str:
    """NVML's own words without capitals or full stop, acronyms kept: ``not supported``."""
    words = str(error).strip().rstrip(".").split()
    return " ".join(w.lower() if w.istitle() else w for w in words)
