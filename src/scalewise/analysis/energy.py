"""Energy of a run, device by device: the counter against integrated power.

The driver counts energy exactly but takes milliseconds to tell it, so it is read every ten seconds
and at both ends of a run; power is sampled each time. Between two readings of the counter the
samples say *when* the energy was used and the counter says *how much* it was:

    E(a, b) = sum over counter intervals k of  dE_k * integral(P, a..b in k) / integral(P, k)

with the integral by trapezoids. Integrated power alone is kept beside it, because the difference
tells how far power samples (a running mean on most GPUs) can be trusted without a counter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from scalewise.records import DeviceSeries, SampledDevice

Floats = npt.NDArray[np.float64]

_MIN_IDLE_SAMPLES = 3


@dataclass(frozen=True)
class DeviceEnergy:
    """One GPU. None is "not measured", with the reason in ``missing``."""

    device: SampledDevice
    timed_j: float | None
    """Over the timed steps."""
    timed_s: float
    source: Literal["counter", "power samples"] | None
    """What ``timed_j`` rests on."""
    run_j: float | None
    """From the first reading of the counter to the last: start-up and end of the run included."""
    run_integrated_j: float | None
    """Integrated power over the same span."""
    run_s: float | None
    idle_w: float | None
    """Mean power before the first step, with nothing running on the GPU."""
    missing: tuple[str, ...] = ()


def measure_energy(
    series: DeviceSeries,
    device: SampledDevice,
    timed: tuple[float, float],
    first_step: float,
) -> DeviceEnergy:
    """Energy of one GPU; ``timed`` and ``first_step`` are Unix times.

    Where there is no counter, the timed steps need two power samples inside them.
    """
    power_at, power_w = _known(series, device.id, "power_w")
    counted_at, counted_j = _known(series, device.id, "energy_j")
    missing: list[str] = []
    run_j = run_integrated_j = run_s = None
    if len(counted_at) < 2:
        why = series.unavailable.get("energy_j", f"it was read {len(counted_at)} times")
        missing.append(f"energy counter: {why}")
    elif (np.diff(counted_j) < 0).any():
        missing.append("energy counter: it was reset while the run lasted")
        counted_at, counted_j = counted_at[:0], counted_j[:0]
    elif counted_j[-1] > counted_j[0]:
        run_j = float(counted_j[-1] - counted_j[0])
        run_s = float(counted_at[-1] - counted_at[0])
        run_integrated_j = integrate(power_at, power_w, counted_at[0], counted_at[-1])
    scaled = _scaled_to_counter(power_at, power_w, counted_at, counted_j, *timed)
    if scaled is None and np.sum((power_at >= timed[0]) & (power_at <= timed[1])) >= 2:
        plain = integrate(power_at, power_w, *timed)
    else:
        plain = None
    idle_w, why_not = _idle(series, device, first_step)
    if why_not:
        missing.append(f"idle power: {why_not}")
    return DeviceEnergy(
        device, scaled if scaled is not None else plain, timed[1] - timed[0],
        "counter" if scaled is not None else "power samples" if plain is not None else None,
        run_j, run_integrated_j, run_s, idle_w, tuple(missing),
    )  # fmt: skip


def integrate(times: Floats, power_w: Floats, start: float, end: float) -> float | None:
    """Joules by trapezoids from ``start`` to ``end`` (Unix time); None outside the samples."""
    if len(times) < 2 or start < times[0] - 1e-3 or end > times[-1] + 1e-3 or end <= start:
        return None
    inside = (times > start) & (times < end)
    at = np.concatenate([[start], times[inside], [end]])
    return float(np.trapezoid(np.interp(at, times, power_w), at))


def _scaled_to_counter(
    power_at: Floats, power_w: Floats, counted_at: Floats, counted_j: Floats,
    start: float, end: float,
) -> float | None:  # fmt: skip
    """The formula above; None where the counter does not enclose the whole time."""
    if len(counted_at) < 2 or start < counted_at[0] or end > counted_at[-1]:
        return None
    total = 0.0
    for i in range(len(counted_at) - 1):
        low, high = counted_at[i], counted_at[i + 1]
        begin, finish = max(start, low), min(end, high)
        if finish <= begin:
            continue
        whole = integrate(power_at, power_w, low, high)
        part = integrate(power_at, power_w, begin, finish)
        # Without power samples the energy is spread evenly.
        share = part / whole if whole and part is not None else (finish - begin) / (high - low)
        total += float(counted_j[i + 1] - counted_j[i]) * share
    return total


def _idle(
    series: DeviceSeries, device: SampledDevice, first_step: float
) -> tuple[float | None, str]:
    """Mean power of the idle GPU in W, and why there is none.

    Idle is before the first step, at 0 % utilisation in this sample and in the one after it: the
    driver's utilisation lags behind.
    """
    rows = [
        (row[device.id].power_w, row[device.id].utilization_percent)
        for when, row in zip(series.times, series.samples, strict=True)
        if when < first_step and device.id in row
    ]
    idle_w = [
        power
        for (power, busy), (_, busy_next) in pairwise(rows)
        if power is not None and busy == 0 and busy_next == 0
    ]
    if len(idle_w) < _MIN_IDLE_SAMPLES:
        return None, (
            f"{len(idle_w)} samples of an idle GPU before the first step, "
            f"{_MIN_IDLE_SAMPLES} are needed"
        )
    return float(np.mean(idle_w)), ""


def _known(series: DeviceSeries, device_id: str, metric: str) -> tuple[Floats, Floats]:
    points: Sequence[tuple[float, float]] = [
        (when, value)
        for when, value in zip(series.times, series.values(device_id, metric), strict=True)
        if value is not None
    ]
    array = np.array(points, dtype=np.float64).reshape(-1, 2)
    return array[:, 0], array[:, 1]
