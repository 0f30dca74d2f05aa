"""Each condition is said once, and only where a person can do something about it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.nvml.scenario import Scenario, gpu_uuid
from scalewise.gpu import DeviceSampler
from scalewise.gpu.xid import PATIENCE, DeviceAlerts
from scalewise.records import Alert, CellFolder, DeviceSample, SampledDevice, read_device_series

_DEVICE = SampledDevice("GPU-a", 3, "NVIDIA H200", memory_total_mib=1000.0)
_FINE = DeviceSample(
    "GPU-a", memory_used_mib=500.0, power_w=650.0, temperature_c=88.0, sm_clock_mhz=1200.0,
    throttle_reasons=(), ecc_corrected=7, ecc_uncorrected=0, remapped_rows=1,
)  # fmt: skip


def alerts_of(*samples: DeviceSample) -> list[Alert]:
    watch = DeviceAlerts()
    return [a for i, s in enumerate(samples) for a in watch.check(float(i), _DEVICE, s)]


def test_a_healthy_gpu_and_old_errors_are_no_alert() -> None:
    assert alerts_of(*[_FINE] * 30) == []


@pytest.mark.parametrize("reason", ["thermal slowdown (hardware)", "power brake"])
def test_heat_and_brakes_are_said_at_first_sight_and_once(reason: str) -> None:
    hot = replace(_FINE, throttle_reasons=(reason,))
    (alert,) = alerts_of(_FINE, hot, hot, _FINE, hot)
    assert (alert.time, alert.level, alert.condition) == (1.0, "warn", "throttling")
    assert alert.title == f"GPU 3: held back by {reason}"
    assert alert.text == (f"NVIDIA H200 3 is held back by {reason} at 1200 MHz, 88 °C, 650 W")


def test_a_power_cap_counts_only_when_it_lasts() -> None:
    capped = replace(_FINE, throttle_reasons=("power cap",))
    now_and_then = [*[capped] * (PATIENCE - 1), _FINE] * 3
    assert alerts_of(*now_and_then) == []
    (alert,) = alerts_of(*[capped] * (PATIENCE + 5))
    assert alert.time == PATIENCE - 1


def test_clocks_that_somebody_chose_are_no_alert() -> None:
    chosen = replace(_FINE, throttle_reasons=("application clocks",))
    assert alerts_of(*[chosen] * 30) == []


def test_memory_errors_are_counted_from_the_start_of_the_cell() -> None:
    worse = replace(_FINE, ecc_corrected=9, ecc_uncorrected=1, remapped_rows=2)
    unread = replace(_FINE, ecc_corrected=None, ecc_uncorrected=None, remapped_rows=None)
    found = alerts_of(_FINE, unread, worse, worse)
    assert [(a.level, a.title) for a in found] == [
        ("warn", "GPU 3: corrected memory errors"),
        ("error", "GPU 3: uncorrected memory errors"),
        ("warn", "GPU 3: memory rows remapped"),
    ]
    assert "2 corrected memory errors while this cell ran" in found[0].text


def test_nearly_full_memory_is_said_once() -> None:
    found = alerts_of(*[replace(_FINE, memory_used_mib=m) for m in (950.0, 951.0, 990.0)])
    assert [a.time for a in found] == [1.0]
    assert "951 of 1,000 MiB used (95.1%)" in found[0].text


def test_every_title_fits_wandb() -> None:
    everything = replace(
        _FINE, memory_used_mib=999.0, throttle_reasons=("thermal slowdown (software)", "x" * 90)
    )
    assert all(len(a.title) < 64 for a in alerts_of(everything))


def test_the_sampler_records_an_alert_of_a_real_series(
    fake_nvml: Callable[[Scenario], Path], tmp_path: Path
) -> None:
    scenario = Scenario().h200(2)
    scenario.points(1, "reasons", {0: 0, time.monotonic() - scenario.origin + 0.4: 0x40})
    scenario.points(0, "reasons", {0: 0})
    scenario.points(0, "memory_mib", {0: 143_000})
    fake_nvml(scenario)
    folder = CellFolder(tmp_path / "cell")
    with DeviceSampler(folder, {gpu_uuid(0): 0, gpu_uuid(1): 1}, dict, 0.1):
        time.sleep(1.0)
    (path,) = folder.device_series_paths()
    series = read_device_series(path)
    assert [(a.condition, a.device_id) for a in series.alerts] == [
        ("memory", gpu_uuid(0)),
        ("throttling", gpu_uuid(1)),
    ]
    assert "thermal slowdown (hardware)" in series.alerts[1].text
    assert series.problems == ()
