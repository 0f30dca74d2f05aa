"""Metrics of a GPU and how each is read, in groups by cost.

Measured on an H200: the core group takes 17.5 us a GPU; the energy counter alone 3.5 ms; a GPM
sample 50 us and its metrics 1.2 ms. ``nvmlDeviceGetPcieThroughput`` takes 21 ms and is never
called. A successor is preferred to a call that goes away in CUDA 14; older drivers fall back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from scalewise.records import words_beside

Read = Callable[[Any], Any]
"""From a device handle to a value in the unit that the metric's name says."""

GPM_MIN_INTERVAL_S = 0.1
"""NVML asks for GPM samples more than 100 ms apart."""

MEANINGS = words_beside(__file__, dict[str, Any], "meanings.toml")
"""What names and numbers of the driver stand for, by the table."""
GPM_METRICS: dict[str, str] = MEANINGS["gpm"]

_ALL_LINKS = 0xFFFFFFFF
"""Scope of an NVLink field: the sum over all links."""

_REASONS = {int(bit, 0): words for bit, words in MEANINGS["throttle"].items()}
_IDLE = 0x001


@lru_cache(maxsize=256)
def throttle_words(mask: int) -> tuple[str, ...]:
    """Clock event reasons in words, without ``idle``."""
    bits = (1 << n for n in range(mask.bit_length()))
    return tuple(_REASONS.get(b, f"reason {b:#x}") for b in bits if mask & b and b != _IDLE)


def first_known(api: Any, *calls: Read) -> Read:
    """The first of several calls that driver and device know, the preferred one first."""
    unknown = (api.NVML_ERROR_FUNCTION_NOT_FOUND, api.NVML_ERROR_NOT_SUPPORTED)

    def read(handle: Any) -> Any:
        for call in calls[:-1]:
            try:
                return call(handle)
            except api.NVMLError as error:
                if error.value not in unknown:
                    raise
        return calls[-1](handle)

    return read


def core_group(api: Any) -> dict[str, Read]:
    """Metrics cheap enough for 10 Hz."""
    sensor = api.NVML_TEMPERATURE_GPU
    reasons = first_known(
        api,
        api.nvmlDeviceGetCurrentClocksEventReasons,
        api.nvmlDeviceGetCurrentClocksThrottleReasons,
    )
    memory = first_known(
        api,
        # Version 2 leaves out what the driver reserves for itself, as nvidia-smi does.
        lambda h: api.nvmlDeviceGetMemoryInfo(h, version=api.nvmlMemory_v2).used,
        lambda h: api.nvmlDeviceGetMemoryInfo(h).used,
    )
    return {
        "utilization_percent": lambda h: float(api.nvmlDeviceGetUtilizationRates(h).gpu),
        "memory_used_mib": lambda h: memory(h) / 2**20,
        "power_w": lambda h: api.nvmlDeviceGetPowerUsage(h) / 1000,
        "temperature_c": first_known(
            api,
            lambda h: float(api.nvmlDeviceGetTemperatureV(h, sensor)),
            lambda h: float(api.nvmlDeviceGetTemperature(h, sensor)),
        ),
        "sm_clock_mhz": lambda h: float(api.nvmlDeviceGetClockInfo(h, api.NVML_CLOCK_SM)),
        "memory_clock_mhz": lambda h: float(api.nvmlDeviceGetClockInfo(h, api.NVML_CLOCK_MEM)),
        "throttle_reasons": lambda h: throttle_words(reasons(h)),
    }


def slow_group(api: Any) -> dict[str, Read]:
    """Counters, some of which take milliseconds."""

    def ecc(kind: int) -> Read:
        return lambda h: int(api.nvmlDeviceGetTotalEccErrors(h, kind, api.NVML_VOLATILE_ECC))

    def field(number: int, unit_mib: float, scope: int = 0) -> Read:
        return lambda h: _field(api, h, number, scope) * unit_mib

    def nvlink(throughput_kib: int, count_bytes: int) -> Read:
        # Both sum over all links; which one a driver answers differs by generation.
        return first_known(
            api,
            field(throughput_kib, 1 / 2**10, _ALL_LINKS),
            field(count_bytes, 1 / 2**20, _ALL_LINKS),
        )

    return {
        "energy_j": lambda h: api.nvmlDeviceGetTotalEnergyConsumption(h) / 1000,
        "ecc_corrected": ecc(api.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        "ecc_uncorrected": ecc(api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        "remapped_rows": lambda h: sum(api.nvmlDeviceGetRemappedRows(h)[:2]),
        "pcie_tx_mib": field(api.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 1 / 2**20),
        "pcie_rx_mib": field(api.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 1 / 2**20),
        "nvlink_tx_mib": nvlink(
            api.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, api.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES
        ),
        "nvlink_rx_mib": nvlink(
            api.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, api.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES
        ),
    }


_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal")
"""Of the union that holds a field's value, by NVML's number of its type (``NVML_VALUE_TYPE_*``)."""


def _field(api: Any, handle: Any, number: int, scope: int) -> float:
    """One field value; each field has an error of its own beside the call's."""
    value = api.nvmlDeviceGetFieldValues(handle, [(number, scope)])[0]
    if value.nvmlReturn == api.NVML_ERROR_INVALID_ARGUMENT:
        # So a driver answers to a field, or a sum over links, that it does not know.
        raise api.NVMLError(api.NVML_ERROR_NOT_SUPPORTED)
    if value.nvmlReturn != api.NVML_SUCCESS:
        raise api.NVMLError(value.nvmlReturn)
    return float(getattr(value.value, _MEMBERS[value.valueType]))


class GpmGroup:
    """Hopper's activity counters of one device: the mean between two samples."""

    def __init__(self, api: Any, handle: Any) -> None:
        """Raises NVML's "not supported" where the device has no GPM."""
        self._api, self._handle = api, handle
        if not api.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise api.NVMLError(api.NVML_ERROR_NOT_SUPPORTED)
        self._query = api.c_nvmlGpmMetricsGet_t()
        self._query.version = api.NVML_GPM_METRICS_GET_VERSION
        self._query.numMetrics = len(GPM_METRICS)
        for slot, name in enumerate(GPM_METRICS.values()):
            self._query.metrics[slot].metricId = getattr(api, f"NVML_GPM_METRIC_{name}")
        self._old, self._new = api.nvmlGpmSampleAlloc(), api.nvmlGpmSampleAlloc()
        self._taken_at: float | None = None

    def read(self) -> tuple[dict[str, float], dict[str, int]]:
        """Metrics since the last reading, and the error code of each that could not be had."""
        now = time.monotonic()
        if self._taken_at is not None and now - self._taken_at <= GPM_MIN_INTERVAL_S:
            return {}, {}
        self._api.nvmlGpmSampleGet(self._handle, self._new)
        first, self._taken_at = self._taken_at is None, now
        self._old, self._new = self._new, self._old
        if first:
            return {}, {}
        self._query.sample1, self._query.sample2 = self._new, self._old  # the earlier one first
        self._api.nvmlGpmMetricsGet(self._query)
        values: dict[str, float] = {}
        missing: dict[str, int] = {}
        for slot, name in enumerate(GPM_METRICS):
            metric = self._query.metrics[slot]
            if metric.nvmlReturn == self._api.NVML_SUCCESS:
                values[name] = float(metric.value)
            else:
                missing[name] = int(metric.nvmlReturn)
        return values, missing

    def close(self) -> None:
        self._api.nvmlGpmSampleFree(self._old)
        self._api.nvmlGpmSampleFree(self._new)
