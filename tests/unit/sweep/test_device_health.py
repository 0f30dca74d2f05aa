"""Evidence against a GPU, and what is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scalewise.records import (
    Alert,
    CellFolder,
    DeviceInfo,
    DeviceSample,
    DeviceSeries,
    DeviceSeriesWriter,
    Quarantine,
    SampledDevice,
    find_record,
)
from scalewise.sweep.device_health import DeviceQuarantine, find_faulty_gpus

A, B, C = "GPU-a", "GPU-b", "GPU-c"
UUIDS = (A, B, C)
DEVICES = tuple(SampledDevice(uuid, i, "NVIDIA H200") for i, uuid in enumerate(UUIDS))
SLOTS = tuple(DeviceInfo("cuda", "NVIDIA H200", uuid, i) for i, uuid in enumerate(UUIDS))


def series(
    sample: Callable[[str, int], DeviceSample], count: int = 20, alerts: tuple[Alert, ...] = ()
) -> DeviceSeries:
    rows = tuple({uuid: sample(uuid, i) for uuid in UUIDS} for i in range(count))
    times = tuple(float(i) for i in range(count))
    return DeviceSeries("h", "nvml", 1.0, DEVICES, {}, times, rows, alerts=alerts)


def healthy(uuid: str, i: int) -> DeviceSample:
    return DeviceSample(
        uuid, utilization_percent=99.0, sm_clock_mhz=1980.0, throttle_reasons=("power cap",)
    )


def found(one: DeviceSeries) -> list[tuple[str, str]]:
    return [(s.uuid, s.reason) for s in find_faulty_gpus(one)]


def test_a_power_cap_and_a_single_hot_sample_are_no_fault() -> None:
    def sample(uuid: str, i: int) -> DeviceSample:
        hot = ("thermal slowdown (hardware)",) if i == 3 else ("sync boost",)
        return replace(healthy(uuid, i), throttle_reasons=hot)

    assert found(series(healthy)) == []
    assert found(series(sample)) == []


def test_heat_in_a_tenth_of_the_samples_is() -> None:
    def sample(uuid: str, i: int) -> DeviceSample:
        hot = uuid == B and i % 4 == 0
        reasons = ("thermal slowdown (hardware)", "power cap") if hot else ()
        return replace(healthy(uuid, i), throttle_reasons=reasons)

    (one,) = find_faulty_gpus(series(sample))
    assert (one.uuid, one.reason) == (B, "throttling")
    assert one.evidence == "held back by thermal slowdown (hardware) in 5 of 20 samples"


@pytest.mark.parametrize("condition", ["xid", "ecc", "lost"])
def test_errors_of_the_driver_are_and_its_warnings_are_not(condition: Any) -> None:
    error = Alert(1.0, "error", condition, C, "t", "XID 79, fallen off the bus")
    assert found(series(healthy, alerts=(error,))) == [(C, "errors")]
    assert found(series(healthy, alerts=(replace(error, level="warn"),))) == []


def test_a_quarantine_keeps_what_it_put_aside_and_says_who_cannot_run(tmp_path: Path) -> None:
    folder = CellFolder(tmp_path / "cell")
    writer = DeviceSeriesWriter(folder.device_series_path("h"), "h", "nvml", 1.0, DEVICES, {})
    writer.alert(Alert(1.0, "error", "xid", B, "GPU 1: XID 79", "XID 79, fallen off the bus"))
    writer.close()
    quarantine = DeviceQuarantine(tmp_path)
    assert quarantine.refusal(3, SLOTS) is None
    (device,) = quarantine.examine(folder, SLOTS)
    assert str(device) == "GPU 1 (GPU-b): XID 79, fallen off the bus"
    assert quarantine.examine(folder, SLOTS) == [], "said once"

    again = DeviceQuarantine(tmp_path)
    assert (find_record(tmp_path, Quarantine) or Quarantine()).devices == (device,)
    assert [slot.uuid for slot in again.usable(SLOTS)] == [A, C]
    assert again.refusal(2, SLOTS) is None
    refusal = again.refusal(3, SLOTS)
    assert refusal is not None
    assert refusal.startswith(
        "needs 3 devices, and 2 of this host's 3 are left: GPU 1 (GPU-b): XID 79"
    )


def test_processor_cores_are_never_put_aside(tmp_path: Path) -> None:
    quarantine = DeviceQuarantine(tmp_path)
    cores = (DeviceInfo("cpu", "a CPU", cores=(0,)),)
    assert quarantine.examine(CellFolder(tmp_path / "cell"), cores) == []
    assert quarantine.usable(cores) == cores
