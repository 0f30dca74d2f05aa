"""The seam to NVIDIA's management library: the only importer of ``pynvml``.

NVML's error codes are told apart in :class:`Nvml` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, takewhile
from typing import Any, TypeVar

from scalewise.gpu.metrics import GPM_METRICS, MEANINGS, GpmGroup, core_group, slow_group
from scalewise.records import DeviceProcess, DeviceSample, SampledDevice

T = TypeVar("T")

_AFFINITY_WORDS = 16
"""64-bit words of the CPU mask asked for: 1,024 cores."""

_P2P_READ, _P2P_NVLINK = 0, 2
"""Indices of nvmlDeviceGetP2PStatus (pynvml's own constant for READ is a tuple by mistake)."""

_DIVIDED = "found MIG mode; allowed: whole GPUs (sudo nvidia-smi -i {} -mig 0)"


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
    index: int
    """NVML's index, in PCI bus order."""
    uuid: str
    name: str
    memory_total_mib: float | None
    power_limit_w: float | None
    pci_bus_id: str | None
    cores: tuple[int, ...] = ()
    """CPU cores close to the GPU; empty where NVML does not tell."""

    def as_sampled(self, rank: int | None = None) -> SampledDevice:
        """The header of this device in a series, used by ``rank``."""
        return SampledDevice(
            self.uuid, self.index, self.name, rank, self.memory_total_mib, self.power_limit_w
        )


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


class Nvml(AbstractContextManager["Nvml"]):
    """An initialised NVML. One thread at a time; call :meth:`close` when done.

    An error is one of three things:

    * *not there* (not supported, function not found, permission refused): the metric is None from
      then on, and its reason stands once in :attr:`unavailable`;
    * *gone* (fell off the bus, needs a reset, driver unloaded or replaced): :class:`GpuLost`;
    * anything else: :class:`NvmlError` from a single question; inside a sample that value is None
      and the error is kept in :attr:`faults`, so that the other values survive.
    """

    def __init__(self, api: Any) -> None:
        self.api = api
        self.handles: dict[str, Any] = {}
        """By UUID; looked up once, because NVML serialises on driver locks."""
        self.unavailable: dict[str, str] = {}
        """Metric to the reason it cannot be read; filled as metrics are first asked for."""
        self.faults: dict[str, str] = {}
        """``GPU <index> <metric>`` to the last unexpected error inside a sample."""
        self.not_there, self.gone = (
            frozenset(getattr(api, f"NVML_ERROR_{name}") for name in MEANINGS["errors"][meaning])
            for meaning in ("not_there", "gone")
        )
        self._absent: set[tuple[str, str]] = set()
        self._core = core_group(api)
        self._slow = slow_group(api)
        self._gpm: dict[str, GpmGroup] = {}

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

    def is_absent(self, device: GpuDevice, metric: str) -> bool:
        """Whether the device said before that it does not have this metric."""
        return (device.uuid, metric) in self._absent

    def ask(self, what: str, call: Callable[[], T]) -> T:
        """A single question. Raises :class:`NvmlError` naming ``what`` could not be told."""
        try:
            return call()
        except self.api.NVMLError as error:
            raise NvmlError(f"NVML could not tell {what}: {words(error)}") from None

    def attempt(self, device: GpuDevice, metric: str, call: Callable[[Any], T]) -> T | None:
        """The answer for this device, None where there is none. Raises :class:`GpuLost`."""
        if self.is_absent(device, metric):
            return None
        try:
            return call(self.handles[device.uuid])
        except self.api.NVMLError as error:
            self.classify(error, device, metric)
            return None

    def classify(self, error: Any, device: GpuDevice, metric: str) -> None:
        """Keep why a metric has no value. Raises :class:`GpuLost` where the GPU is gone."""
        if error.value in self.gone:
            raise GpuLost(device.uuid, words(error)) from None
        if error.value in self.not_there:
            self._absent.add((device.uuid, metric))
            for name in GPM_METRICS if metric == "gpm" else (metric,):
                self.unavailable.setdefault(name, f"{words(error)} (GPU {device.index})")
        else:
            self.faults[f"GPU {device.index} {metric}"] = words(error)

    def devices(self) -> tuple[GpuDevice, ...]:
        """Every whole GPU that answers, in NVML's order; :attr:`faults` says why not the others."""
        found = []
        for index in range(self.count()):
            try:
                handle = self.api.nvmlDeviceGetHandleByIndex(index)
                if (self._known(self.api.nvmlDeviceGetMigMode, handle) or (0,))[0]:
                    self.faults[f"GPU {index}"] = _DIVIDED.format(index)
                else:
                    found.append(self._describe(handle, index))
            except self.api.NVMLError as error:
                self.faults[f"GPU {index}"] = words(error)
            except GpuLost as error:
                self.faults[f"GPU {index}"] = error.reason
        return tuple(found)

    def _describe(self, handle: Any, index: int) -> GpuDevice:
        api = self.api
        uuid = str(api.nvmlDeviceGetUUID(handle))
        self.handles[uuid] = handle
        bare = GpuDevice(index, uuid, uuid, None, None, None)
        ask = partial(self.attempt, bare)
        return replace(
            bare,
            name=ask("name", api.nvmlDeviceGetName) or uuid,
            memory_total_mib=ask(
                "memory_total_mib", lambda h: api.nvmlDeviceGetMemoryInfo(h).total / 2**20
            ),
            power_limit_w=ask(
                "power_limit_w", lambda h: api.nvmlDeviceGetEnforcedPowerLimit(h) / 1000
            ),
            pci_bus_id=ask("pci_bus_id", lambda h: str(api.nvmlDeviceGetPciInfo(h).busId)),
            cores=ask("cores", lambda h: _cores(api.nvmlDeviceGetCpuAffinity(h, _AFFINITY_WORDS)))
            or (),
        )

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
        rows = self.attempt(device, "processes", self.api.nvmlDeviceGetComputeRunningProcesses)
        if rows is None:
            return None
        used = [None if p.usedGpuMemory is None else p.usedGpuMemory / 2**20 for p in rows]
        return tuple(DeviceProcess(int(p.pid), m) for p, m in zip(rows, used, strict=True))

    def _gpm_of(self, device: GpuDevice) -> dict[str, float]:
        group = self._gpm.get(device.uuid)
        if group is None:
            group = self._gpm[device.uuid] = GpmGroup(self.api, self.handles[device.uuid])
        values, missing = group.read()
        for metric, code in missing.items():
            if not self.is_absent(device, metric):
                self.classify(self.api.NVMLError(code), device, metric)
        return values

    def link(self, a: GpuDevice, b: GpuDevice) -> str | None:
        """The best link of two GPUs: ``NV<links>``, else the nearest common ancestor.

        ``PIX`` one PCIe switch, ``PXB`` several, ``PHB`` a host bridge, ``NODE`` a NUMA node,
        ``SYS`` across nodes, ``INT`` one board; None where NVML does not tell.
        """
        api, handles = self.api, (self.handles[a.uuid], self.handles[b.uuid])
        try:
            if links := self._nvlinks(*handles):
                return f"NV{links}"
            level = api.nvmlDeviceGetTopologyCommonAncestor(*handles)
        except api.NVMLError:
            return None
        return {
            api.NVML_TOPOLOGY_INTERNAL: "INT",
            api.NVML_TOPOLOGY_SINGLE: "PIX",
            api.NVML_TOPOLOGY_MULTIPLE: "PXB",
            api.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
            api.NVML_TOPOLOGY_NODE: "NODE",
        }.get(level, "SYS")

    def peer_access(self, a: GpuDevice, b: GpuDevice) -> str | None:
        """``ok`` where ``a`` reads ``b``'s memory directly, else why not; None where untold."""
        handles = self.handles[a.uuid], self.handles[b.uuid]
        try:
            status = self.api.nvmlDeviceGetP2PStatus(*handles, _P2P_READ)
        except self.api.NVMLError:
            return None
        return str(MEANINGS["peer_access"].get(str(status), "unknown"))

    def link_matrix(self, gpus: Sequence[GpuDevice]) -> dict[str, str]:
        """``"<index>-<index>"`` to :meth:`link` for every pair; "?" where NVML does not tell."""
        return {f"{a.index}-{b.index}": self.link(a, b) or "?" for a, b in combinations(gpus, 2)}

    def _nvlinks(self, a: Any, b: Any) -> int:
        """NVLinks that join two device handles, directly or through NVSwitches."""
        api = self.api
        if self._known(api.nvmlDeviceGetP2PStatus, a, b, _P2P_NVLINK) != 0:
            return 0
        target = self._known(api.nvmlDeviceGetPciInfo, b)
        active = self._active_links(a)
        ends = [self._known(api.nvmlDeviceGetNvLinkRemotePciInfo, a, link) for link in active]
        direct = sum(end is not None and end.busId == target.busId for end in ends) if target else 0
        # Behind NVSwitches the remote end is the switch: every link of both leads there.
        return direct or min(len(active), len(self._active_links(b)))

    def _active_links(self, handle: Any) -> list[int]:
        links = range(self.api.NVML_NVLINK_MAX_LINKS)
        states = (self._known(self.api.nvmlDeviceGetNvLinkState, handle, link) for link in links)
        # Link numbers end where the device's links do.
        there = takewhile(lambda state: state is not None, states)
        return [link for link, state in enumerate(there) if state]

    def _known(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """The answer; None where device or driver has no such thing. Raises NVML's other errors."""
        try:
            return question(*arguments)
        except self.api.NVMLError as error:
            if error.value not in {*self.not_there, self.api.NVML_ERROR_INVALID_ARGUMENT}:
                raise
            return None


def words(error: Any) -> str:
    """NVML's own words without capitals or full stop, acronyms kept: ``not supported``."""
    return " ".join(w.lower() if w.istitle() else w for w in str(error).strip().rstrip(".").split())


def _cores(mask: Sequence[int]) -> tuple[int, ...]:
    """The set bits of NVML's CPU mask, 64 cores a word."""
    return tuple(core for core in range(64 * len(mask)) if mask[core // 64] >> core % 64 & 1)
