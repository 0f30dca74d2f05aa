"""Energy from the counter, placed in time by power samples, and checked against them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from scalewise.analysis.devices import DeviceEnergy, integrate, measure_energy
from scalewise.records import DeviceSample, DeviceSeries, SampledDevice

_GPU = SampledDevice("GPU-a", 0, "NVIDIA H200")


def series(power_w: Sequence[float], energy_j: Mapping[int, float]) -> DeviceSeries:
    """One sample a second from Unix time 100 on; the counter read at the seconds given."""
    samples = tuple(
        {"GPU-a": DeviceSample("GPU-a", power_w=power, energy_j=energy_j.get(i))}
        for i, power in enumerate(power_w)
    )
    times = tuple(100.0 + i for i in range(len(power_w)))
    return DeviceSeries("h", "nvml", 1.0, (_GPU,), {}, times, samples)


def energy(one: DeviceSeries, start: float, end: float) -> DeviceEnergy:
    return measure_energy(one, _GPU, (start, end))


def test_the_counter_tells_how_much_and_the_samples_when() -> None:
    # Power samples read 10 % low, and all the work is in the second half.
    power = [90.0] * 6 + [630.0] * 5
    truth_j = integrate(np.arange(100.0, 111.0), np.array(power), 100.0, 110.0)
    found = energy(series(power, {0: 0.0, 10: truth_j / 0.9}), 106.0, 110.0)
    assert found.timed_j == pytest.approx(630 * 4 / 0.9)


def test_counter_readings_in_between_are_each_kept_to() -> None:
    # The second interval used twice what the samples say; the first exactly that.
    one = series([100.0] * 11, {0: 0.0, 5: 500.0, 10: 1500.0})
    assert energy(one, 101.0, 103.0).timed_j == pytest.approx(200)
    assert energy(one, 103.0, 107.0).timed_j == pytest.approx(200 + 400)


def test_without_a_counter_power_samples_must_do() -> None:
    one = replace(series([100.0] * 11, {}), unavailable={"energy_j": "not supported (GPU 0)"})
    found = energy(one, 102.0, 106.0)
    assert (found.timed_j, found.source) == (pytest.approx(400), "power samples")
    assert found.run_j is None
    assert "energy counter: not supported (GPU 0)" in found.missing


def test_one_power_sample_is_no_energy() -> None:
    found = energy(series([100.0] * 11, {}), 102.6, 103.4)
    assert (found.timed_j, found.source) == (None, None)


def test_a_reset_counter_says_nothing() -> None:
    found = energy(series([100.0] * 11, {0: 9000.0, 5: 10.0, 10: 510.0}), 102.0, 106.0)
    assert found.run_j is None
    assert found.source == "power samples"
    assert "energy counter: it was reset while the run lasted" in found.missing


def test_integration_is_by_trapezoids_and_inside_the_samples_only() -> None:
    times, power = np.array([0.0, 1.0, 2.0]), np.array([0.0, 10.0, 0.0])
    assert integrate(times, power, 0.0, 2.0) == pytest.approx(10.0)
    assert integrate(times, power, 0.5, 1.0) == pytest.approx(3.75)
    assert integrate(times, power, 0.5, 2.5) is None
    assert integrate(times, power, 1.0, 1.0) is None
