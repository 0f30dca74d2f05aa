"""What the devices were doing while a run trained: memory, utilisation, power, energy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from scalewise.analysis.balance import cv_percent
from scalewise.analysis.energy import DeviceEnergy, measure_energy
from scalewise.analysis.spans import Span, contains, length_s, overlaps, without
from scalewise.analysis.standstill import time_aside
from scalewise.analysis.throughput import NotMeasuredError
from scalewise.records import DeviceSample, DeviceSeries, RankSummary, SampledDevice, StepSeries


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


@dataclass(frozen=True)
class _Times:
    """Of one run, in Unix time."""

    timed: Span
    everything: Span
    aside: tuple[Span, ...]
    """In which it was suspended: what was sampled then tells nothing of how it trains."""

    def counts(self, window: Span, when: float) -> bool:
        """Whether a sample of that moment is one of the window's."""
        return window[0] <= when <= window[1] and not contains(self.aside, when)


def measure_usage(
    series: Sequence[DeviceSeries],
    steps: Sequence[StepSeries],
    ranks: Sequence[RankSummary] = (),
) -> Usage:
    """Means over the time of the timed steps, or of all steps where that holds no sample.

    Time in which the cell was suspended is left out of either.

    Args:
        series: of the hosts of one run.
        steps: of its ranks.
        ranks: what these say of themselves; without them, a suspension between two steps is not
            known.

    Raises :class:`NotMeasuredError` with the reason where there is nothing to take means of.
    """
    if not series:
        raise NotMeasuredError("no device series was recorded")
    if not any(len(s) for s in steps):
        raise NotMeasuredError("no steps were recorded, so no sample can be placed in time")
    everything, timed = _window(steps), _window([s.timed() for s in steps])
    times = _Times(timed, everything, time_aside(steps, ranks))
    for name, window in (("timed steps", timed), ("all steps", everything)):
        devices = [_usage(one, device, window, times) for one in series for device in one.devices]
        if devices and any(d.samples for d in devices):
            return Usage(series[0].source, name, tuple(devices))
    trained_s = length_s(without(everything, times.aside))
    raise NotMeasuredError(
        f"no device sample fell inside the {trained_s:.1f} s of training "
        f"(one every {series[0].interval_s:g} s)"
    )


def joules_per_million_samples(usage: Usage, global_samples_per_s: float) -> float | None:
    """Energy of all devices for a million samples, in J; None where power is unknown."""
    return None if usage.power_w is None else usage.power_w / global_samples_per_s * 1e6


def _window(steps: Sequence[StepSeries]) -> Span:
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


def _usage(series: DeviceSeries, device: SampledDevice, window: Span, times: _Times) -> DeviceUsage:
    """Means over ``window``; energy always over the timed steps, which it is divided by."""
    inside = [i for i, t in enumerate(series.times) if times.counts(window, t)]
    energy = None
    if series.source == "nvml" and without(times.timed, times.aside):
        energy = measure_energy(series, device, times.timed, times.everything[0], times.aside)
    activity, activity_readings = _activity(series, device.id, window, times.aside)
    busy = [i for i in inside if not _reaches_aside(series, i, times.aside)]
    rows = _rows(series, device.id, inside)
    memory = _values(rows, lambda r: r.memory_used_mib)
    utilization = _values(_rows(series, device.id, busy), lambda r: r.utilization_percent)
    reasons = {reason for row in rows for reason in row.throttle_reasons or ()}
    return DeviceUsage(
        device=device,
        samples=len(rows),
        memory_used_mib=_mean(memory),
        memory_sd_mib=float(np.std(memory, ddof=1)) if len(memory) > 1 else None,
        utilization_percent=_mean(utilization),
        power_w=(
            energy.timed_j / energy.timed_s
            if window == times.timed and energy is not None and energy.timed_j is not None
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


def _rows(series: DeviceSeries, device_id: str, at: Sequence[int]) -> list[DeviceSample]:
    """Of one device, of those of its samples that are there."""
    return [series.samples[i][device_id] for i in at if device_id in series.samples[i]]


def _reaches_aside(series: DeviceSeries, at: int, aside: Sequence[Span]) -> bool:
    """Whether this sample's utilisation is also that of time ``aside``.

    A process's is its CPU time since the sample before; a GPU's is of the moment.
    """
    if series.source == "nvml" or at == 0:
        return False
    return overlaps((series.times[at - 1], series.times[at]), aside)


def _activity(
    series: DeviceSeries, device_id: str, window: Span, aside: Sequence[Span]
) -> tuple[dict[str, float | None], int]:
    """GPM metrics over the window, each reading weighted by its time inside; and their number.

    A reading is the mean since the reading before it, so one taken soon after the first timed step
    tells of start-up: it counts only if at least half of its time lies in the window, and none of
    it ``aside``.
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
            if inside >= (when - before) / 2 and not overlaps((before, when), aside):
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
