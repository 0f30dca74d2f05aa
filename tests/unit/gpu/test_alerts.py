"""Each condition is said once, and only where a person can do something about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.gpu.xid import PATIENCE, DeviceAlerts
from scalewise.records import DeviceSample, SampledDevice

_DEVICE = SampledDevice("GPU-a", 3, "NVIDIA H200", memory_total_mib=1000.0)
_FINE = DeviceSample(
    "GPU-a", memory_used_mib=500.0, power_w=650.0, temperature_c=88.0, sm_clock_mhz=1200.0,
    throttle_reasons=(), ecc_corrected=7, ecc_uncorrected=0, remapped_rows=1,
)  # fmt: skip
_HOT = replace(_FINE, throttle_reasons=("thermal slowdown (hardware)",))
_BRAKED = replace(_FINE, throttle_reasons=("power brake",))
_CAPPED = replace(_FINE, throttle_reasons=("power cap",))
_CHOSEN = replace(_FINE, throttle_reasons=("application clocks",))
_WORSE = replace(_FINE, ecc_corrected=9, ecc_uncorrected=1, remapped_rows=2)
_UNREAD = replace(_FINE, ecc_corrected=None, ecc_uncorrected=None, remapped_rows=None)
_FULL = [replace(_FINE, memory_used_mib=used) for used in (950.0, 951.0, 990.0)]
_LONG = replace(_FINE, throttle_reasons=("x" * 90,))


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([_FINE] * 30, []),
        ([_FINE, _HOT, _HOT, _FINE, _HOT], [(1, "warn", "throttling")]),
        ([_FINE, _BRAKED], [(1, "warn", "throttling")]),
        ([*[_CAPPED] * (PATIENCE - 1), _FINE] * 3, []),
        ([_CAPPED] * (PATIENCE + 5), [(PATIENCE - 1, "warn", "throttling")]),
        ([_CHOSEN] * 30, []),
        (
            [_FINE, _UNREAD, _WORSE, _WORSE],
            [(2, "warn", "ecc"), (2, "error", "ecc"), (2, "warn", "ecc")],
        ),
        (_FULL, [(1, "warn", "memory")]),
        ([_LONG], [(0, "warn", "throttling")]),
    ],
)
def test_conditions(samples: list[DeviceSample], expected: list[tuple[int, str, str]]) -> None:
    watch = DeviceAlerts()
    found = [a for i, s in enumerate(samples) for a in watch.check(float(i), _DEVICE, s)]
    assert [(a.time, a.level, a.condition) for a in found] == expected
    assert all(len(alert.title) < 64 for alert in found), "what wandb takes"


def test_texts_hold_the_figures() -> None:
    watch = DeviceAlerts()
    (hot,) = watch.check(0.0, _DEVICE, _HOT)
    assert hot.title == "GPU 3: held back by thermal slowdown (hardware)"
    assert hot.text.endswith("at 1200 MHz, 88 °C, 650 W")
    errors, *_ = watch.check(1.0, _DEVICE, _WORSE)
    assert "2 corrected memory errors while this cell ran" in errors.text
    (full,) = watch.check(2.0, _DEVICE, _FULL[1])
    assert "951 of 1,000 MiB used (95.1%)" in full.text
