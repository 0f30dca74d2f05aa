from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from scalewise.records import DataError, DeviceSample, DeviceSeriesWriter, SampledDevice
from scalewise.tracking.rows import DeviceRows
from scalewise.tracking.trackio import name_in_trackio


def series(
    path: Path,
    source: Literal["nvml", "process"],
    samples: list[tuple[float, list[DeviceSample]]],
) -> list[dict[str, Any]]:
    """Lines of a device series with devices ``d0`` (index 2) and ``d1`` (index 3)."""
    devices = tuple(SampledDevice(f"d{i}", i + 2, "A10G", i) for i in range(2))
    writer = DeviceSeriesWriter(path / "host.jsonl", "host", source, 1.0, devices, {})
    for when, readings in samples:
        writer.append(when, {s.id: s for s in readings}, 0.1)
    writer.note("a GPU was lost")
    writer.close()
    return [json.loads(line) for line in (path / "host.jsonl").read_text().splitlines()]


def rows(
    lines: list[dict[str, Any]], interval_s: float = 1.0, label: str = ""
) -> list[tuple[float, dict[str, float]]]:
    reader = DeviceRows(interval_s, label)
    found = [reader.row(line) for line in lines]
    return [row for row in found if isinstance(row, tuple)]


def test_gpus_are_named_by_index(tmp_path: Path) -> None:
    both = [
        DeviceSample("d0", utilization_percent=80, memory_used_mib=1000, throttle_reasons=()),
        DeviceSample("d1", utilization_percent=90, memory_used_mib=3000, throttle_reasons=("x",)),
    ]
    ((when, values),) = rows(series(tmp_path, "nvml", [(10.0, both)]))
    assert when == 10.0
    assert values == {
        "gpu/2/utilization_percent": 80,
        "gpu/2/memory_used_mib": 1000,
        "gpu/2/throttled": 0.0,
        "gpu/3/utilization_percent": 90,
        "gpu/3/memory_used_mib": 3000,
        "gpu/3/throttled": 1.0,
        "gpu_2_memory": 1000,
        "gpu_3_memory": 3000,
        "gpu_total_memory": 4000,
        "gpu_avg_utilization": 85,
        "gpus/total_memory_used_mib": 4000,
        "gpus/mean_utilization_percent": 85,
        "gpus/memory_used_cv_percent": 50,
        "gpus/utilization_cv_percent": pytest.approx(100 * 5 / 85),
    }


@pytest.mark.parametrize("others", [[DeviceSample("d1")], []])
def test_a_gpu_that_was_not_read_or_vanished_leaves_no_total(
    tmp_path: Path, others: list[DeviceSample]
) -> None:
    known = DeviceSample("d0", memory_used_mib=1000)
    ((_, values),) = rows(series(tmp_path, "nvml", [(10.0, [known, *others])]))
    assert values == {
        "gpu/2/memory_used_mib": 1000,
        "gpu_2_memory": 1000,
    }


def test_processes_are_labelled_as_such(tmp_path: Path) -> None:
    sample = [DeviceSample("d1", utilization_percent=180, memory_used_mib=500)]
    ((_, values),) = rows(series(tmp_path, "process", [(1.0, sample)]))
    assert values == {
        "process/3/cpu_percent": 180,
        "process/3/rss_mib": 500,
    }


def test_fast_samples_are_thinned(tmp_path: Path) -> None:
    fast = [(i / 10, [DeviceSample("d0", power_w=100 + i)]) for i in range(31)]
    times = [when for when, _ in rows(series(tmp_path, "nvml", fast))]
    assert times == pytest.approx([0.0, 0.9, 1.8, 2.7], abs=0.11)


def test_hosts_are_told_apart(tmp_path: Path) -> None:
    sample = [DeviceSample("d0", power_w=1), DeviceSample("d1", power_w=2)]
    ((_, values),) = rows(series(tmp_path, "nvml", [(1.0, sample)]), label="beef-")
    assert values == {
        "gpu/beef-2/power_w": 1,
        "gpu/beef-3/power_w": 2,
        "gpus_beef/total_power_w": 3,
        "gpus_beef/power_cv_percent": pytest.approx(100 / 3),
    }


def test_a_late_device_is_known(tmp_path: Path) -> None:
    lines = series(tmp_path, "process", [])
    lines.append({"time": 1.0, "device": {"id": "late", "index": 7, "name": "rank 7"}})
    lines.append({"time": 2.0, "devices": [{"id": "late", "memory_used_mib": 3.0}]})
    assert rows(lines) == [(2.0, {"process/7/rss_mib": 3.0})]


def test_a_line_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="identity: unknown key"):
        rows([{"time": 1.0, "devices": [{"identity": "d0"}]}])


def test_a_name_that_trackio_keeps_for_itself_is_another() -> None:
    assert [name_in_trackio(name) for name in ("step", "steps")] == ["value/step", "steps"]
