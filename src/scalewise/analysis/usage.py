"""What the devices were doing while a run trained: memory, utilisation, power, energy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from scalewise.analysis.balance import cv_percent
from scalewise.analysis.energy import DeviceEnergy, measure_energy
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
    """Energy of the window over its length where energy is known, else the samples' mean."""
    temperature_c: float | None
    throttle_reasons: tuple[str, ...]
    """Every reason seen at least once."""
    throttled_share: float | None = None
    """Share of the samples with any reason; None where reasons could not be read."""
    sm_clock_mhz: float | None = None
    top_sm_clock_mhz: float | None = None
    """The highest clock sampled on this device in the whole run."""
    sm_activity_percent: float | None = None
    """Time in which an SM had work, also while that waited for memory: busy, not efficient. GPM,
    as both below, over readings that lie at least half in the window: None before Hopper, and
    where the window is shorter than that."""
    tensor_activity_percent: float | None = None
    dram_activity_percent: float | None = None
    utilization_readings: int = 0
    """Of which ``utilization_percent`` is the mean."""
    activity_readings: int = 0
    """Of which the three GPM metrics are the means."""
    energy: DeviceEnergy | None = None
    """None for a process, and where the steps have no length."""

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

    @property
    def utilization_readings(self) -> int:
        """Of all devices together."""
        return sum(d.utilization_readings for d in self.devices)

    @property
    def activity_readings(self) -> int:
        """Of all devices together."""
        return sum(d.activity_readings for d in self.devices)

    def mean(self, metric: str) -> float | None:
        """Mean over devices; None unless every device has the value."""
        values = [getattr(d, metric) for d in self.devices]
        return None if not values or any(v is None for v in values) else sum(values) / len(values)

    @property
    def power_w(self) -> float | None:
        """Of all devices together; None if one of them is unknown."""
        mean = self.mean("power_w")
        return None if mean is None else mean * len(self.devices)

    @property
    def timed_energy_j(self) -> float | None:
        """Of all devices over the timed steps; None if one of them is unknown."""
        known = [d.energy.timed_j for d in self.devices if d.energy is not None]
        total = [j for j in known if j is not None]
        return sum(total) if total and len(total) == len(self.devices) else None


def measure_usage(series: Sequence[DeviceSeries], steps: Sequence[StepSeries]) -> Usage:
    """Means over the time of the timed steps, or of all steps where that holds no sample.

    The time of a long step stays in, energy included, though its samples count nowhere: the line
    that names the step says so.

    Raises :class:`NotMeasuredError` with the reason where there is nothing to take means of.
    """
    if not series:
        raise NotMeasuredError("no device series was recorded")
    if not any(len(s) for s in steps):
        raise NotMeasuredError("no steps were recorded, so no sample can be placed in time")
    everything, timed = _window(steps), _window([s.timed() for s in steps])
    for name, window in (("timed steps", timed), ("all steps", everything)):
        devices = [
            _usage(one, device, window, timed, everything[0])
            for one in series
            for device in one.devices
        ]
        if devices and any(d.samples for d in devices):
            return Usage(series[0].source, name, tuple(devices))
    raise NotMeasuredError(
        f"no device sample fell inside the {everything[1] - everything[0]:.1f} s of training "
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


def _usage(
    series: DeviceSeries,
    device: SampledDevice,
    window: tuple[float, float],
    timed: tuple[float, float],
    first_step: float,
) -> DeviceUsage:
    """Means over ``window``; energy always over the ``timed`` steps, which it is divided by."""
    inside = [i for i, t in enumerate(series.times) if window[0] <= t <= window[1]]
    energy = None
    if series.source == "nvml" and timed[1] > timed[0]:
        energy = measure_energy(series, device, timed, first_step)
    activity, activity_readings = _activity(series, device.id, window)
    rows = [series.samples[i][device.id] for i in inside if device.id in series.samples[i]]
    memory = _values(rows, lambda r: r.memory_used_mib)
    utilization = _values(rows, lambda r: r.utilization_percent)
    reasons = {reason for row in rows for reason in row.throttle_reasons or ()}
    return DeviceUsage(
        device=device,
        samples=len(rows),
        memory_used_mib=_mean(memory),
        memory_sd_mib=float(np.std(memory, ddof=1)) if len(memory) > 1 else None,
        utilization_percent=_mean(utilization),
        power_w=(
            energy.timed_j / energy.timed_s
            if window == timed and energy is not None and energy.timed_j is not None
            else _mean(_values(rows, lambda r: r.power_w))
        ),
        temperature_c=_mean(_values(rows, lambda r: r.temperature_c)),
        throttle_reasons=tuple(sorted(reasons)),
        throttled_share=_mean(
            [float(bool(r.throttle_reasons)) for r in rows if r.throttle_reasons is not None]
        ),
        sm_clock_mhz=_mean(_values(rows, lambda r: r.sm_clock_mhz)),
        top_sm_clock_mhz=max(
            (c for c in series.values(device.id, "sm_clock_mhz") if c is not None), default=None
        ),
        sm_activity_percent=activity["sm_activity_percent"],
        tensor_activity_percent=activity["tensor_activity_percent"],
        dram_activity_percent=activity["dram_activity_percent"],
        utilization_readings=len(utilization),
        activity_readings=activity_readings,
        energy=energy,
    )


def _activity(
    series: DeviceSeries, device_id: str, window: tuple[float, float]
) -> tuple[dict[str, float | None], int]:
    """GPM metrics over the window, each reading weighted by its time inside; and their number.

    A reading is the mean since the reading before it, so one taken soon after the first timed step
    tells of start-up: it counts only if at least half of its time lies in the window.
    """
    weights: list[float] = []
    readings: list[DeviceSample] = []
    before: float | None = None
    for when, row in zip(series.times, series.samples, strict=True):
        sample = row.get(device_id)
        if sample is None or sample.sm_activity_percent is None:
            # The first reading of all has no value; it comes with the other slow metrics.
            before = when if before is None and sample is not None else before
            continue
        if before is not None:
            inside = min(when, window[1]) - max(before, window[0])
            if inside >= (when - before) / 2:
                weights.append(inside)
                readings.append(sample)
        before = when
    found: dict[str, float | None] = {}
    for metric in ("sm_activity_percent", "tensor_activity_percent", "dram_activity_percent"):
        values = [getattr(sample, metric) for sample in readings]
        whole = bool(values) and all(v is not None for v in values)
        found[metric] = float(np.average(values, weights=weights)) if whole else None
    return found, len(readings)


def _values(
    rows: Sequence[DeviceSample], read: Callable[[DeviceSample], float | None]
) -> list[float]:
    return [value for value in map(read, rows) if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
