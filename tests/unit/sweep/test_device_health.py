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
    SampledDevice,
    load_quarantine,
    read_device_series,
)
from scalewise.supervisor import Outcome
from scalewise.sweep.device_health import (
    DeviceQuarantine,
    SingleRun,
    find_faulty_gpus,
    find_slow_gpus,
)

DATA = Path(__file__).parents[2] / "data"
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
    return [(s.uuid, s.reason) for s in find_faulty_gpus([one])]


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

    (one,) = find_faulty_gpus([series(sample)])
    assert (one.uuid, one.reason) == (B, "throttling")
    assert one.evidence == "held back by thermal slowdown (hardware) in 5 of 20 samples"


@pytest.mark.parametrize("condition", ["xid", "ecc", "lost"])
def test_errors_of_the_driver_are_and_its_warnings_are_not(condition: Any) -> None:
    error = Alert(1.0, "error", condition, C, "t", "XID 79, fallen off the bus")
    assert found(series(healthy, alerts=(error,))) == [(C, "errors")]
    assert found(series(healthy, alerts=(replace(error, level="warn"),))) == []


def test_gpus_that_the_doctor_measured_in_turn_are_no_peers_of_another_moment() -> None:
    """Recorded on two healthy H200s: one was busy mostly at its power cap, one mostly below."""
    recorded = read_device_series(DATA / "h200x2_doctor" / "gpu.jsonl")
    assert len(recorded.samples) == 18
    assert list(find_faulty_gpus([recorded])) == []


def test_who_alone_is_at_its_power_cap_works_harder() -> None:
    def stage(uuid: str, i: int) -> DeviceSample:
        if uuid == A:
            return replace(healthy(uuid, i), sm_clock_mhz=1500.0)
        return replace(healthy(uuid, i), throttle_reasons=())

    assert found(series(stage)) == []


@pytest.mark.parametrize(("mhz", "expected"), [(1500.0, [(A, "slow")]), (1750.0, [])])
def test_a_clock_below_its_peers_under_load(mhz: float, expected: list[tuple[str, str]]) -> None:
    def sample(uuid: str, i: int) -> DeviceSample:
        return replace(healthy(uuid, i), sm_clock_mhz=mhz if uuid == A else 1980.0)

    def idle(uuid: str, i: int) -> DeviceSample:
        return replace(sample(uuid, i), utilization_percent=3.0)

    assert found(series(sample)) == expected
    assert found(series(idle)) == [], "an idle GPU may clock as it likes"
    assert found(series(sample, count=4)) == [], "too few samples"


def test_falling_behind_in_single_gpu_cells_takes_two_of_them_and_two_peers() -> None:
    first = [SingleRun("x", A, 60.0), SingleRun("x", B, 100.0), SingleRun("x", C, 104.0)]
    second = [SingleRun("y", A, 7.0), SingleRun("y", B, 10.0), SingleRun("y", C, 10.0)]
    assert list(find_slow_gpus(first)) == []
    (one,) = find_slow_gpus([*first, *second])
    assert (one.uuid, one.reason) == (A, "slow")
    assert one.evidence == "made 59 %, 70 % of its peers' samples/s in the same cells"
    assert list(find_slow_gpus([*first[:2], *second[:2]])) == [], "of two, who is the slow one?"
    usual = [replace(run, samples_per_s=80.0) if run.uuid == A else run for run in first]
    assert list(find_slow_gpus([*usual, *second])) == []


def test_a_quarantine_keeps_what_it_put_aside_and_says_who_cannot_run(tmp_path: Path) -> None:
    folder = CellFolder(tmp_path / "cell")
    writer = DeviceSeriesWriter(folder.device_series_path("h"), "h", "nvml", 1.0, DEVICES, {})
    writer.alert(Alert(1.0, "error", "xid", B, "GPU 1: XID 79", "XID 79, fallen off the bus"))
    writer.close()
    quarantine = DeviceQuarantine(tmp_path)
    assert quarantine.refusal(3, SLOTS) is None
    (device,) = quarantine.examine(folder, "x", SLOTS, Outcome("failed"))
    assert str(device) == "GPU 1 (GPU-b): XID 79, fallen off the bus"
    assert quarantine.examine(folder, "x", SLOTS, Outcome("failed")) == [], "said once"

    again = DeviceQuarantine(tmp_path)
    assert load_quarantine(tmp_path).devices == (device,)
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
    assert quarantine.examine(CellFolder(tmp_path / "cell"), "x", cores, Outcome("done")) == []
    assert quarantine.usable(cores) == cores
