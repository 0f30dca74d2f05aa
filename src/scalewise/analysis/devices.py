"""What the devices were doing while a run trained: memory, utilisation, power, energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from scalewise.analysis.steps import NotMeasuredError, mean_of_known
from scalewise.records import DeviceSample, DeviceSeries, SampledDevice, cv_percent

Floats = npt.NDArray[np.float64]
Span = tuple[float, float]
"""Begin and end in Unix seconds."""


@dataclass(frozen=True)
class DeviceEnergy:
    """One GPU. None is "not measured", with the reason in ``missing``."""

    device: SampledDevice
    timed_j: float | None
    """Over the timed steps."""
    timed_s: float
    source: str | None
    """What ``timed_j`` rests on: ``counter`` or ``power samples``."""
    run_j: float | None
    """From the first reading of the counter to the last: start-up and end of the run included."""
    missing: tuple[str, ...] = ()


def measure_energy(series: DeviceSeries, device: SampledDevice, timed: Span) -> DeviceEnergy:
    """Energy of one GPU; ``timed`` are Unix times.

    The driver takes milliseconds to tell its counter, which is read every ten seconds and at both
    ends of a run; power is sampled each time. Between two readings of the counter the samples say
    *when* the energy was used and the counter *how much* it was, with integrals by trapezoids:

    E(a, b) = sum over counter intervals k of dE_k * integral(P, a..b in k) / integral(P, k)

    Without a counter, the timed steps need two power samples inside them.
    """
    power_at, power_w = _known(series, device.id, "power_w")
    counted_at, counted_j = _known(series, device.id, "energy_j")
    grown_j, apart_s = np.diff(counted_j), np.diff(counted_at)
    run_j, why = None, ""
    if len(counted_at) < 2:
        why = series.unavailable.get("energy_j", f"it was read {len(counted_at)} times")
    elif (grown_j < 0).any():
        why = "it was reset while the run lasted"
    elif not grown_j.any() or not grown_j[apart_s >= 1.0].all():  # it moves many times a second
        why = "it stood still while the run lasted"
    else:
        run_j = float(counted_j[-1] - counted_j[0])
    if why:
        counted_at, counted_j = counted_at[:0], counted_j[:0]
    joules, source = _scaled_to_counter(power_at, power_w, counted_at, counted_j, *timed), "counter"
    if joules is None and np.sum((power_at >= timed[0]) & (power_at <= timed[1])) >= 2:
        joules, source = integrate(power_at, power_w, *timed), "power samples"
    known, missing = None if joules is None else source, (f"energy counter: {why}",) if why else ()
    return DeviceEnergy(device, joules, timed[1] - timed[0], known, run_j, missing)


def integrate(times: Floats, power_w: Floats, start: float, end: float) -> float | None:
    """Joules by trapezoids from ``start`` to ``end`` (Unix time); None outside the samples."""
    if len(times) < 2 or start < times[0] - 1e-3 or end > times[-1] + 1e-3 or end <= start:
        return None
    at = np.clip([start, *times, end], start, end)
    return float(np.trapezoid(np.interp(at, times, power_w), at))


def _scaled_to_counter(
    power_at: Floats, power_w: Floats, counted_at: Floats, counted_j: Floats,
    start: float, end: float,
) -> float | None:  # fmt: skip
    """The formula above; None where the counter does not enclose the whole time."""
    if len(counted_at) < 2 or start < counted_at[0] or end > counted_at[-1]:
        return None
    total = 0.0
    for (low, low_j), (high, high_j) in pairwise(zip(counted_at, counted_j, strict=True)):
        begin, finish = max(start, low), min(end, high)
        if finish <= begin:
            continue
        whole = integrate(power_at, power_w, low, high)
        part = integrate(power_at, power_w, begin, finish)
        # Without power samples the energy is spread evenly.
        share = part / whole if whole and part is not None else (finish - begin) / (high - low)
        total += float(high_j - low_j) * share
    return total


def _known(series: DeviceSeries, device_id: str, metric: str) -> tuple[Floats, Floats]:
    points = zip(series.times, series.values(device_id, metric), strict=True)
    known = [(when, value) for when, value in points if value is not None]
    at, values = np.array(known, dtype=np.float64).reshape(-1, 2).T
    return at, values


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
    sm_activity_percent: float | None = None
    """Time in which an SM had work, also while that waited for memory: busy, not efficient. GPM,
    as both below, over readings that lie at least half in the window: None before Hopper, and
    where the window is shorter than that."""
    tensor_activity_percent: float | None = None
    dram_activity_percent: float | None = None
    engine_activity_percent: float | None = None
    """Share of the window with any kernel on the GPU: GPM's, else NVML's utilisation where the
    window is long enough for that (two of its sample periods). None where neither is known."""
    utilization_readings: int = 0
    """Of which ``utilization_percent`` is the mean."""
    energy: DeviceEnergy | None = None
    """None for a process, and where the steps have no length."""

    @property
    def power_capped_share(self) -> float | None:
        """Of the samples; None where reasons were not read, or where there was another one."""
        return self.throttled_share if {"power cap"}.issuperset(self.throttle_reasons) else None

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
        return sum(values) / len(values) if values and None not in values else None

    @property
    def power_w(self) -> float | None:
        """Of all devices together; None if one of them is unknown."""
        mean = self.mean("power_w")
        return None if mean is None else mean * len(self.devices)

    def energy_j(self, of: Literal["timed_j", "run_j"]) -> float | None:
        """Of all devices together, as :class:`DeviceEnergy` has it; None if one is unknown."""
        known = [j for d in self.devices if (j := getattr(d.energy, of, None)) is not None]
        return sum(known) if known and len(known) == len(self.devices) else None


def measure_usage(
    series: Sequence[DeviceSeries], everything: Span | None, timed: Span | None
) -> Usage:
    """Means over the time of the timed steps, or of all steps where that holds no sample.

    The time of a long step stays in, energy included, though its samples count nowhere: the line
    that names the step says so.

    Raises :class:`NotMeasuredError` with the reason where there is nothing to take means of.
    """
    if not series:
        raise NotMeasuredError("no device series was recorded")
    if everything is None:
        raise NotMeasuredError("no steps were recorded, so no sample can be placed in time")
    timed = timed or (0.0, 0.0)
    for name, window in (("timed steps", timed), ("all steps", everything)):
        devices = [_usage(one, device, window, timed) for one in series for device in one.devices]
        if devices and any(d.samples for d in devices):
            return Usage(series[0].source, name, tuple(devices))
    raise NotMeasuredError(
        f"no device sample fell inside the {everything[1] - everything[0]:.1f} s of training "
        f"(one every {series[0].interval_s:g} s)"
    )


def _usage(series: DeviceSeries, device: SampledDevice, window: Span, timed: Span) -> DeviceUsage:
    """Means over ``window``; energy always over the ``timed`` steps, which it is divided by."""
    inside = [i for i, t in enumerate(series.times) if window[0] <= t <= window[1]]
    energy = None
    if series.source == "nvml" and timed[1] > timed[0]:
        energy = measure_energy(series, device, timed)
    rows = [series.samples[i][device.id] for i in inside if device.id in series.samples[i]]
    known = {name: [v for r in rows if (v := getattr(r, name)) is not None] for name in _SAMPLED}
    figures = {name: mean_of_known(values) for name, values in known.items()}
    if window == timed and energy is not None and energy.timed_j is not None:
        figures["power_w"] = energy.timed_j / energy.timed_s
    figures |= _activity(series, device.id, window)
    long_enough = window[1] - window[0] >= _UTILIZATION_WINDOW_S
    if figures["engine_activity_percent"] is None and long_enough:
        figures["engine_activity_percent"] = figures["utilization_percent"]
    reasons = [r.throttle_reasons for r in rows if r.throttle_reasons is not None]
    memory = known["memory_used_mib"]
    return DeviceUsage(
        device=device,
        samples=len(rows),
        memory_sd_mib=float(np.std(memory, ddof=1)) if len(memory) > 1 else None,
        throttle_reasons=tuple(sorted({reason for each in reasons for reason in each})),
        throttled_share=mean_of_known([float(bool(each)) for each in reasons]),
        **figures,
        utilization_readings=len(known["utilization_percent"]),
        energy=energy,
    )


_SAMPLED = (
    "memory_used_mib", "utilization_percent", "power_w", "temperature_c", "sm_clock_mhz",
)  # fmt: skip
_ACTIVITIES = (
    "sm_activity_percent", "tensor_activity_percent", "dram_activity_percent",
    "engine_activity_percent",
)  # fmt: skip
_UTILIZATION_WINDOW_S = 2.0
"""From which NVML's utilisation stands in for GPM's engine activity: it is a mean over up to a
second that may end before the reading. Both tell the same of known loads on an H200, to 1 %."""


def _activity(series: DeviceSeries, device_id: str, window: Span) -> dict[str, float | None]:
    """GPM metrics over the window, each reading weighted by its time inside.

    A reading is the mean since the reading before it: it counts only if at least half of its time
    lies in the window. The engine's is subtracted from 100 %: its readings have to lie in it whole.
    """
    readings: list[tuple[float, DeviceSample, bool]] = []
    """Time inside, what was read, and whether all of its time is."""
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
                readings.append((inside, sample, window[0] <= before and when <= window[1]))
        before = when
    found: dict[str, float | None] = {}
    for metric in _ACTIVITIES:
        kept = [one for one in readings if one[2] or metric != "engine_activity_percent"]
        values = [getattr(sample, metric) for _, sample, _ in kept]
        known = bool(values) and all(v is not None for v in values)
        weights = [inside for inside, *_ in kept]
        found[metric] = float(np.average(values, weights=weights)) if known else None
    return found
