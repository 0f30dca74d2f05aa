"""Readings of a host's devices over time, in JSON lines under one header."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeFloat

from scalewise.records.files import (
    SCHEMA_VERSION,
    LineParser,
    LineWriter,
    RecordError,
    UnixTime,
    parse_series,
)
from scalewise.records.validation import build, to_plain


@dataclass(frozen=True)
class SampledDevice:
    """The constant facts of a device (on a CPU host: of a process) that is sampled."""

    id: str
    """The GPU's UUID, or ``rank<r>`` for a process."""
    index: int
    """NVML's index, or the rank."""
    name: str
    rank: int | None = None
    """The rank that used it, where known."""
    memory_total_mib: float | None = None
    power_limit_w: float | None = None


@dataclass(frozen=True)
class DeviceProcess:
    """A process that computes on a GPU."""

    pid: int
    """As the driver numbers it: the host's pid, not a container's."""
    memory_mib: float | None
    """None where the driver does not tell."""


@dataclass(frozen=True)
class DeviceSample:
    """One reading of one device. None is "could not be read"; the header says why."""

    id: str
    utilization_percent: float | None = None
    """GPU: share of the last sample period with any kernel resident. Process: CPU, 100 = 1 core."""
    memory_used_mib: float | None = None
    """GPU: used on the whole device. Process: resident set; None while it is ending."""
    power_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    """Reasons in words, without ``idle``; empty when nothing holds the clocks back."""
    energy_j: float | None = None
    """The energy counter, in joules since the driver was loaded."""
    sm_activity_percent: float | None = None
    """GPM: share of SM cycles with work, over the interval."""
    sm_occupancy_percent: float | None = None
    tensor_activity_percent: float | None = None
    dram_activity_percent: float | None = None
    engine_activity_percent: float | None = None
    """GPM: share of the interval with any kernel on the GPU; keeps the gaps between launches."""
    pcie_tx_mib_per_s: float | None = None
    pcie_rx_mib_per_s: float | None = None
    nvlink_tx_mib_per_s: float | None = None
    nvlink_rx_mib_per_s: float | None = None
    ecc_corrected: int | None = None
    """Slow lane, as all below: errors since the driver was loaded."""
    ecc_uncorrected: int | None = None
    remapped_rows: int | None = None
    """Memory rows replaced for good."""
    pcie_tx_mib: float | None = None
    """Counters of bytes moved, in MiB; they may restart from 0."""
    pcie_rx_mib: float | None = None
    nvlink_tx_mib: float | None = None
    nvlink_rx_mib: float | None = None
    processes: tuple[DeviceProcess, ...] | None = None
    """The processes that computed on the device."""


@dataclass(frozen=True)
class Alert:
    """A condition that a person should look at, said once."""

    time: UnixTime
    level: Literal["warn", "error"]
    condition: Literal["throttling", "ecc", "memory", "lost", "xid"]
    device_id: str
    """Empty for a condition of the whole cell."""
    title: str
    """Less than 64 characters."""
    text: str


@dataclass(frozen=True)
class DeviceSeries:
    """All samples one host took for one cell."""

    host: str
    source: Literal["nvml", "process"]
    interval_s: NonNegativeFloat
    devices: tuple[SampledDevice, ...]
    unavailable: Mapping[str, str]
    """Metric name to the reason it could not be read."""
    times: tuple[UnixTime, ...]
    samples: tuple[Mapping[str, DeviceSample], ...]
    """For each time, device id to its reading; a device that vanished is absent."""
    cost_ms: tuple[float | None, ...] = ()
    """How long each sample took to take."""
    problems: tuple[str, ...] = ()
    """Torn lines dropped, devices lost."""
    alerts: tuple[Alert, ...] = ()

    def values(self, device_id: str, metric: str) -> list[float | None]:
        """``metric`` of one device, one value for each of ``times``; None where missing."""
        return [getattr(s[device_id], metric) if device_id in s else None for s in self.samples]


class DeviceSeriesWriter(LineWriter):
    """Appends samples of a host's devices under one header."""

    def __init__(
        self, path: Path, host: str, source: Literal["nvml", "process"], interval_s: float,
        devices: tuple[SampledDevice, ...],
    ) -> None:  # fmt: skip
        super().__init__(path)
        self.write(
            {
                "schema_version": SCHEMA_VERSION,
                "host": host,
                "source": source,
                "interval_s": interval_s,
                "devices": to_plain(devices),
                "unavailable": {},  # as yet
            }
        )

    def append(
        self, when: float, samples: Mapping[str, DeviceSample], cost_ms: float | None
    ) -> None:
        """Write one sample of all devices, taken at Unix time ``when`` in ``cost_ms``."""
        plain = map(to_plain, samples.values())
        rows = [{k: v for k, v in one.items() if v is not None} for one in plain]
        self.write({"time": when, "cost_ms": cost_ms, "devices": rows})

    def tell(self, what: Literal["device", "problem", "alert", "unavailable"], told: Any) -> None:
        """Write what the header could not know: a device that came late, a problem in words, a
        condition that a person should look at, or why a metric is no longer read, by its name.
        """
        self.write({"time": time.time(), what: to_plain(told)})


def read_device_series(path: Path) -> DeviceSeries:
    """A host's device series; a torn end is dropped and said in ``problems``.

    Raises :class:`RecordError`.
    """
    parser = LineParser(dict)
    lines = parse_series(path, parser)
    if not lines:
        raise RecordError(f"{path}: empty")
    header, *lines = lines
    if header.pop("schema_version", None) != SCHEMA_VERSION:
        raise RecordError(f"{path}: not a device series of schema version {SCHEMA_VERSION}")
    found: dict[str, list[Any]] = {name: [] for name in _IN_LINES}
    try:
        found["devices"] += header["devices"]
        unavailable = dict(header["unavailable"])
        for line in lines:
            if "problem" in line:
                found["problems"].append(str(line["problem"]))
            elif "unavailable" in line:
                unavailable.update(line["unavailable"])
            elif "alert" in line:
                found["alerts"].append(line["alert"])
            elif "device" in line:
                found["devices"].append(line["device"])
            else:
                found["times"].append(line["time"])
                found["cost_ms"].append(line["cost_ms"])
                found["samples"].append({one["id"]: one for one in line["devices"]})
        if parser.rest:
            found["problems"].append(f"a torn end of {len(parser.rest)} bytes was dropped")
        return build(DeviceSeries, {**header, **found, "unavailable": unavailable})
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{path}: not a device series: {error}") from error


_IN_LINES = ("devices", "times", "samples", "cost_ms", "problems", "alerts")
READINGS = tuple(f.name for f in fields(DeviceSample) if f.name not in ("id", "processes"))
"""What is read of a device: figures, and why its clocks are held back."""
TIMELINE_COLUMNS = ("timestamp", "unix_time", "gpu_index", "gpu_name", "gpu_uuid", *READINGS)
"""``timestamp`` is local time in ISO 8601; metrics carry their unit in their name."""


def timeline_rows(series: DeviceSeries, most_times: int | None = None) -> Iterator[list[object]]:
    """Rows in the order of :data:`TIMELINE_COLUMNS`; empty text where nothing could be read.

    With ``most_times`` every n-th time is kept, the last one always, so that no more are left.
    """
    count = len(series.times)
    every = 1 if most_times is None else max(1, -(-count // most_times))
    kept = slice((count - 1) % every, None, every)
    for when, samples in zip(series.times[kept], series.samples[kept], strict=True):
        stamp = datetime.fromtimestamp(when).isoformat(timespec="milliseconds")
        for device in series.devices:
            if device.id in samples:
                values = [_cell(getattr(samples[device.id], m)) for m in READINGS]
                yield [stamp, when, device.index, device.name, device.id, *values]


def _cell(value: object) -> object:
    if value is None:
        return ""
    return "; ".join(value) if isinstance(value, tuple) else value
