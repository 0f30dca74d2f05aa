"""Every question to NVML: a value, None with its reason kept, or one of our own errors.

An error is one of four things, told apart here and nowhere else:

* *not there* (not supported, function not found, permission refused): the metric is None from
  then on, and its reason stands once in :attr:`NvmlCalls.unavailable`;
* *gone* (fell off the bus, needs a reset, driver unloaded or replaced): :class:`GpuLost`;
* anything else is an error: :class:`NvmlError` from a single question; inside a sample that value
  is None and the error is kept in :attr:`NvmlCalls.faults`, so that the other values survive.

The fourth, no NVML at all, is told when it is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from scalewise.gpu.errors import ErrorKinds, GpuLost, NvmlError, words
from scalewise.gpu.lanes import GPM_METRICS, Read

T = TypeVar("T")


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
    compute_capability: tuple[int, int] | None = None
    """CUDA's number of the architecture; None where NVML does not tell."""


class NvmlCalls:
    """Questions about devices by their handles, and what is known of the answers."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self.handles: dict[str, Any] = {}
        """By UUID; looked up once, because NVML serialises on driver locks."""
        self.unavailable: dict[str, str] = {}
        """Metric to the reason it cannot be read; filled as metrics are first asked for."""
        self.faults: dict[str, str] = {}
        """``GPU <index> <metric>`` to the last unexpected error inside a sample."""
        self.kinds = ErrorKinds(api)
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

    def read_lane(self, device: GpuDevice, lane: dict[str, Read], into: dict[str, Any]) -> None:
        """Every metric of a lane that the device has. Raises :class:`GpuLost`."""
        handle = self.handles[device.uuid]
        for metric, read in lane.items():
            if self.is_absent(device, metric):
                continue
            try:
                into[metric] = read(handle)
            except self.api.NVMLError as error:
                self.classify(error, device, metric)

    def classify(self, error: Any, device: GpuDevice, metric: str) -> None:
        """Keep why a metric has no value. Raises :class:`GpuLost` where the GPU is gone."""
        if error.value in self.kinds.gone:
            raise GpuLost(device.uuid, words(error)) from None
        # Some calls find the handle of a MIG instance invalid where they do not support it.
        unfit = device.mig_ids is not None and error.value == self.api.NVML_ERROR_INVALID_ARGUMENT
        if unfit or error.value in self.kinds.not_there:
            self._absent.add((device.uuid, metric))
            for name in GPM_METRICS if metric == "gpm" else (metric,):
                self.unavailable.setdefault(name, f"{words(error)} (GPU {device.index})")
        else:
            self.faults[f"GPU {device.index} {metric}"] = words(error)
