"""What the devices were doing while a run trained: memory, utilisation, power, energy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from scalewise.analysis.balance import cv_percent
from scalewise.analysis.throughput import NotMeasuredError
from scalewise.records import DeviceSample, DeviceSeries, SampledDevice, StepSeries


@dataclass(frozen=True)
class DeviceUsage:
    """One device (a process on a CPU host): means over the samples inside the window."""

    device: SampledDevice
    samples: int
    memory_used_mib: float | None
    memory_sd_mib: float | None
    utilization_percent: float | None
    power_w: float | None
    """From the energy counter where it was read twice, else the mean of the power samples."""
    temperature_c: float | None
    throttle_reasons: tuple[str, ...]
    """Every reason seen at least once."""
    throttled_share: float | None = None
    """Share of the samples with any reason; None where reasons could not be read."""
    sm_clock_mhz: float | None = None
    top_sm_clock_mhz: float | None = None
    """The highest clock sampled on this device in the whole run."""
    sm_activity_percent: float | None = None
    """GPM, as both below: None before Hopper."""
    tensor_activity_percent: float | None = None
    dram_activity_percent: float | None = None

    @property
    def label(self) -> str:
        return f"GPU {self.device.index}" if self.device.id[:4] != "rank" else self.device.id


@dataclass(frozen=True)
class Usage:
    """All devices of one run."""

    source: Literal["nvml", "process"]
    window: str
    """``timed steps``, or ``all steps`` where no sample fell among the timed ones."""
    devices: tuple[DeviceUsage, ...]

    def cv(self, metric: str) -> float | None:
        """CV across devices in percent of ``memory_used_mib`` and its like; None if unknown."""
        values = [getattr(d, metric) for d in self.devices]
        if len(values) < 2 or any(v is None for v in values) or sum(values) <= 0:
            return None
        return cv_percent(values)

    def mean(self, metric: str) -> float | None:
        """Mean over devices; None unless every device has the value."""
        values = [getattr(d, metric) for d in self.devices]
        return None if not values or any(v is None for v in values) else sum(values) / len(values)

    @property
    def power_w(self) -> float | None:
        """Of all devices together; None if one of them is unknown."""
        mean = self.mean("power_w")
        return None if mean is None else mean * len(self.devices)


def measure_usage(series: Sequence[DeviceSeries], steps: Sequence[StepSeries]) -> Usage:
    """Means over the time of the timed steps, or of all steps where that holds no sample.

    Raises :class:`NotMeasuredError` with the reason where there is nothing to take means of.
    """
    if not series:
        raise NotMeasuredError("no device series was recorded")
    if not any(len(s) for s in steps):
        raise NotMeasuredError("no steps were recorded, so no sample can be placed in time")
    windows = (("timed steps", [s.timed() for s in steps]), ("all steps", list(steps)))
    for name, chosen in windows:
        start, end = _window(chosen)
        devices = [d for one in series for d in _in_window(one, start, end)]
        if devices and any(d.samples for d in devices):
            return Usage(series[0].source, name, tuple(devices))
    start, end = _window(steps)
    raise NotMeasuredError(
        f"no device sample fell inside the {end - start:.1f} s of training "
        f"(one every {series[0].interval_s:g} s)"
    )


def joules_per_million_samples(usage: Usage, global_samples_per_s: float) -> float | None:
    """Energy of all devices for a million samples, in J; None where power is unknown."""
    return None if usage.power_w is None else usage.power_w / global_samples_per_s * 1e6


def _window(steps: Sequence[StepSeries]) -> tuple[float, float]:
    """Unix time of the first start and the last end among the steps."""
    starts, ends = [], []
    for one in steps:
        if len(one):
            first, last = one.rows[0], one.rows[-1]
            tail_ms = float(last["host_step_ms"])
            starts.append((int(first["start_ns"]) + one.epoch_offset_ns) / 1e9)
            end = (int(last["start_ns"]) + one.epoch_offset_ns) / 1e9
            ends.append(end + (0.0 if np.isnan(tail_ms) else tail_ms / 1e3))
    return (min(starts), max(ends)) if starts else (0.0, 0.0)


def _in_window(series: DeviceSeries, start: float, end: float) -> list[DeviceUsage]:
    inside = [i for i, t in enumerate(series.times) if start <= t <= end]
    return [_usage(series, device, inside) for device in series.devices]


def _usage(series: DeviceSeries, device: SampledDevice, inside: Sequence[int]) -> DeviceUsage:
    present = [(series.times[i], series.samples[i][device.id]) for i in inside
               if device.id in series.samples[i]]  # fmt: skip
    rows = [row for _, row in present]
    memory = _values(rows, lambda r: r.memory_used_mib)
    reasons = {reason for row in rows for reason in row.throttle_reasons or ()}
    return DeviceUsage(
        device=device,
        samples=len(rows),
        memory_used_mib=_mean(memory),
        memory_sd_mib=float(np.std(memory, ddof=1)) if len(memory) > 1 else None,
        utilization_percent=_mean(_values(rows, lambda r: r.utilization_percent)),
        power_w=_counter_power(present) or _mean(_values(rows, lambda r: r.power_w)),
        temperature_c=_mean(_values(rows, lambda r: r.temperature_c)),
        throttle_reasons=tuple(sorted(reasons)),
        throttled_share=_mean(
            [float(bool(r.throttle_reasons)) for r in rows if r.throttle_reasons is not None]
        ),
        sm_clock_mhz=_mean(_values(rows, lambda r: r.sm_clock_mhz)),
        top_sm_clock_mhz=max(
            (c for c in series.values(device.id, "sm_clock_mhz") if c is not None), default=None
        ),
        sm_activity_percent=_mean(_values(rows, lambda r: r.sm_activity_percent)),
        tensor_activity_percent=_mean(_values(rows, lambda r: r.tensor_activity_percent)),
        dram_activity_percent=_mean(_values(rows, lambda r: r.dram_activity_percent)),
    )


def _counter_power(present: Sequence[tuple[float, DeviceSample]]) -> float | None:
    """Mean power in W between the first and the last reading of the energy counter."""
    readings = [(t, row.energy_j) for t, row in present if row.energy_j is not None]
    if len(readings) < 2:
        return None
    (t0, e0), (t1, e1) = readings[0], readings[-1]
    # A counter that fell was reset (driver reload): it says nothing.
    return (e1 - e0) / (t1 - t0) if t1 > t0 and e1 > e0 else None


def _values(
    rows: Sequence[DeviceSample], read: Callable[[DeviceSample], float | None]
) -> list[float]:
    return [value for value in map(read, rows) if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
