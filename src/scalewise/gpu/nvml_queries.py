"""Questions to NVML: a value, None with its reason kept, or one of our own errors.

NVML's error codes are told apart in :class:`NvmlCalls` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from scalewise.gpu.metrics import GPM_METRICS
from scalewise.records import SampledDevice

T = TypeVar("T")

_AFFINITY_WORDS = 16
"""64-bit words of the CPU mask asked for: 1,024 cores."""

_P2P_READ, _P2P_NVLINK = 0, 2
"""Indices of nvmlDeviceGetP2PStatus (pynvml's own constant for READ is a tuple by mistake)."""

_PEER_STATUS = {
    0: "ok",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "I/O hub topology not supported",
    4: "disabled by a driver setting",
    5: "not supported",
    6: "unknown",
}


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
    """The constants of a GPU, or of a MIG instance of one."""

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
    compute_capability: tuple[int, int] | None = None
    """CUDA's number of the architecture; None where NVML does not tell."""

    def as_sampled(self, rank: int | None = None) -> SampledDevice:
        """The header of this device in a series, used by ``rank``."""
        return SampledDevice(
            self.uuid, self.index, self.name, rank, self.memory_total_mib, self.power_limit_w
        )


class NvmlCalls:
    """Questions about devices by their handles, and what is known of the answers.

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
        self.not_there = frozenset(
            {
                api.NVML_ERROR_NOT_SUPPORTED,
                api.NVML_ERROR_FUNCTION_NOT_FOUND,
                api.NVML_ERROR_NO_PERMISSION,
            }
        )
        self.gone = frozenset(
            {
                api.NVML_ERROR_GPU_IS_LOST,
                api.NVML_ERROR_RESET_REQUIRED,
                api.NVML_ERROR_GPU_NOT_FOUND,
                api.NVML_ERROR_DRIVER_NOT_LOADED,
                api.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
                api.NVML_ERROR_UNINITIALIZED,
            }
        )
        self._absent: set[tuple[str, str]] = set()

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
        # Some calls find the handle of a MIG instance invalid where they do not support it.
        unfit = device.mig_ids is not None and error.value == self.api.NVML_ERROR_INVALID_ARGUMENT
        if unfit or error.value in self.not_there:
            self._absent.add((device.uuid, metric))
            for name in GPM_METRICS if metric == "gpm" else (metric,):
                self.unavailable.setdefault(name, f"{words(error)} (GPU {device.index})")
        else:
            self.faults[f"GPU {device.index} {metric}"] = words(error)


def words(error: Any) -> str:
    """NVML's own words without capitals or full stop, acronyms kept: ``not supported``."""
    parts = str(error).strip().rstrip(".").split()
    return " ".join(w.lower() if w.istitle() else w for w in parts)


def find_gpus(calls: NvmlCalls, count: int) -> tuple[GpuDevice, ...]:
    """Every GPU that answers, in NVML's order; the others are named in ``calls.faults``."""
    found = []
    for index in range(count):
        try:
            handle = calls.api.nvmlDeviceGetHandleByIndex(index)
            found.append(_describe(calls, handle, index))
        except calls.api.NVMLError as error:
            calls.faults[f"GPU {index}"] = words(error)
        except GpuLost as error:
            calls.faults[f"GPU {index}"] = error.reason
    return tuple(found)


def find_mig_instances(calls: NvmlCalls, parent: GpuDevice) -> tuple[GpuDevice, ...]:
    """The MIG instances of a GPU; empty where MIG is off or unknown. Raises GpuLost."""
    api, handle = calls.api, calls.handles[parent.uuid]
    found = []
    try:
        if api.nvmlDeviceGetMigMode(handle)[0] == 0:
            return ()
        slots = api.nvmlDeviceGetMaxMigDeviceCount(handle)
    except api.NVMLError as error:
        calls.classify(error, parent, "mig")
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
                calls.classify(error, parent, "mig")
            continue
        found.append(_describe(calls, mig, parent.index, parent.uuid, ids))
    return tuple(found)


def _describe(
    calls: NvmlCalls,
    handle: Any,
    index: int,
    parent_uuid: str | None = None,
    mig_ids: tuple[int, int] | None = None,
) -> GpuDevice:
    api = calls.api
    uuid = str(api.nvmlDeviceGetUUID(handle))
    calls.handles[uuid] = handle
    bare = GpuDevice(index, uuid, uuid, None, None, None, (), parent_uuid, mig_ids)

    def ask(what: str, call: Callable[[Any], T]) -> T | None:
        return calls.attempt(bare, what, call)

    name = ask("name", api.nvmlDeviceGetName)
    total = ask("memory_total_mib", lambda h: api.nvmlDeviceGetMemoryInfo(h).total / 2**20)
    capability = ask("compute_capability", api.nvmlDeviceGetCudaComputeCapability)
    power, bus, mask = None, None, None
    if mig_ids is None:
        power = ask("power_limit_w", lambda h: api.nvmlDeviceGetEnforcedPowerLimit(h) / 1000)
        bus = ask("pci_bus_id", lambda h: str(api.nvmlDeviceGetPciInfo(h).busId))
        mask = ask("cores", lambda h: list(api.nvmlDeviceGetCpuAffinity(h, _AFFINITY_WORDS)))
    return GpuDevice(
        index, uuid, name or uuid, total, power, bus, _cores(mask), parent_uuid, mig_ids, capability
    )


def _cores(mask: list[int] | None) -> tuple[int, ...]:
    """The set bits of NVML's CPU mask, 64 cores a word."""
    return tuple(
        64 * word + bit
        for word, bits in enumerate(mask or [])
        for bit in range(64)
        if bits >> bit & 1
    )


def link_kind(calls: NvmlCalls, a: GpuDevice, b: GpuDevice) -> str:
    """The best link of two GPUs: ``NV<links>``, else the nearest common ancestor.

    ``PIX`` one PCIe switch, ``PXB`` several, ``PHB`` a host bridge, ``NODE`` a NUMA node, ``SYS``
    across nodes, ``INT`` one board. Raises NVML's errors.
    """
    api = calls.api
    links = _nvlinks(calls, calls.handles[a.uuid], calls.handles[b.uuid])
    if links:
        return f"NV{links}"
    level = api.nvmlDeviceGetTopologyCommonAncestor(calls.handles[a.uuid], calls.handles[b.uuid])
    return {
        api.NVML_TOPOLOGY_INTERNAL: "INT",
        api.NVML_TOPOLOGY_SINGLE: "PIX",
        api.NVML_TOPOLOGY_MULTIPLE: "PXB",
        api.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
        api.NVML_TOPOLOGY_NODE: "NODE",
    }.get(level, "SYS")


def peer_access(calls: NvmlCalls, a: GpuDevice, b: GpuDevice) -> str:
    """``ok`` where ``a`` reads ``b``'s memory directly, else why not. Raises NVML's errors."""
    handles = calls.handles[a.uuid], calls.handles[b.uuid]
    return _PEER_STATUS.get(calls.api.nvmlDeviceGetP2PStatus(*handles, _P2P_READ), "unknown")


def _nvlinks(calls: NvmlCalls, a: Any, b: Any) -> int:
    """NVLinks that join two device handles, directly or through NVSwitches."""
    api = calls.api
    if _known(calls, api.nvmlDeviceGetP2PStatus, a, b, _P2P_NVLINK) != 0:
        return 0
    target = _known(calls, api.nvmlDeviceGetPciInfo, b)
    active = _active_links(calls, a)
    ends = [_known(calls, api.nvmlDeviceGetNvLinkRemotePciInfo, a, link) for link in active]
    direct = sum(end is not None and end.busId == target.busId for end in ends) if target else 0
    # Behind NVSwitches the remote end is the switch: every link of both leads there.
    return direct or min(len(active), len(_active_links(calls, b)))


def _active_links(calls: NvmlCalls, handle: Any) -> list[int]:
    active = []
    for link in range(calls.api.NVML_NVLINK_MAX_LINKS):
        state = _known(calls, calls.api.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:  # link numbers end where the device's links do
            break
        if state:
            active.append(link)
    return active


def _known(calls: NvmlCalls, question: Callable[..., Any], *arguments: Any) -> Any:
    """The answer; None where device or driver has no such thing. Raises NVML's other errors."""
    try:
        return question(*arguments)
    except calls.api.NVMLError as error:
        if error.value not in {*calls.not_there, calls.api.NVML_ERROR_INVALID_ARGUMENT}:
            raise
        return None
