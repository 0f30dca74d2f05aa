"""Lanes, loss, faults, the beat."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.nvml.scenario import (
    GPU_IS_LOST,
    NO_PERMISSION,
    VERSION_MISMATCH,
    Scenario,
    gpu_uuid,
    mig_uuid,
)
from scalewise.gpu import DeviceSampler, open_nvml, readers
from scalewise.records import CellFolder, DeviceSeries, read_device_series

Use = Callable[[Scenario], Path]


def _no_pids() -> dict[int, int]:
    return {}


def _series(folder: CellFolder) -> DeviceSeries:
    (path,) = folder.device_series_paths()
    return read_device_series(path)


def _gpus(count: int) -> dict[str, int | None]:
    return {gpu_uuid(i): i for i in range(count)}


def _sample_for(seconds: float, sampler: DeviceSampler) -> None:
    with sampler:
        time.sleep(seconds)


def test_each_row_has_every_gpu_and_what_it_cost(fake_nvml: Use, tmp_path: Path) -> None:
    fake_nvml(Scenario().h200(8).latency(0, "energy_mj", 3500))
    folder = CellFolder(tmp_path / "cell")
    sampler = DeviceSampler(folder, _gpus(8), _no_pids, interval_s=0.1)
    _sample_for(1.05, sampler)
    series = _series(folder)
    assert series.source == "nvml" and sampler.problems == []
    assert len(series.times) >= 3
    assert list(series.times) == sorted(set(series.times))
    assert all(set(row) == set(_gpus(8)) for row in series.samples)
    assert all(cost is not None and cost > 0 for cost in series.cost_ms)


def test_each_lane_has_its_own_pace(fake_nvml: Use, tmp_path: Path) -> None:
    fake_nvml(Scenario().h200(1))
    folder = CellFolder(tmp_path / "cell")
    _sample_for(2.5, DeviceSampler(folder, _gpus(1), _no_pids, interval_s=0.1))
    series = _series(folder)
    power, energy, sm, processes = (
        [v for v in series.values(gpu_uuid(0), name) if v is not None]
        for name in ("power_w", "energy_j", "sm_activity_percent", "processes")
    )
    assert len(power) == len(series.times) > len(sm)
    assert len(energy) == 2, "the slow lane is read at the start and at the end"
    assert len(sm) >= 2, "the GPM lane once a second"
    assert len(sm) <= len(processes) < len(power), "the process list once a second too"
    assert energy[1] - energy[0] == pytest.approx(
        600 * (series.times[-1] - series.times[0]), rel=0.05
    )
    device = series.devices[0]
    assert (device.rank, device.index, device.memory_total_mib) == (0, 0, 143_771)


def test_slow_lanes_are_read_one_gpu_after_another(
    fake_nvml: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together, those of eight real GPUs would take longer than a beat at 10 Hz."""
    monkeypatch.setattr(readers, "SLOW_INTERVAL_S", 0.8)
    fake_nvml(Scenario().h200(4))
    reader = readers.GpuReader(open_nvml())
    uuids, begun = [gpu_uuid(i) for i in range(4)], time.monotonic()
    first = reader.read(uuids, 0.1, all_lanes=True)
    assert all(sample.energy_j is not None for sample in first.samples.values())
    read_at: dict[str, list[float]] = {uuid: [] for uuid in uuids}
    while not all(read_at.values()):
        time.sleep(0.1)
        reading = reader.read(uuids, 0.1)
        slow = [uuid for uuid, s in reading.samples.items() if s.energy_j is not None]
        assert len(slow) <= 1
        for uuid in slow:
            read_at[uuid].append(time.monotonic() - begun)
    reader.close()
    assert all(read_at.values()), read_at


def test_what_is_not_there_is_none_with_its_reason(fake_nvml: Use, tmp_path: Path) -> None:
    fake_nvml(Scenario().h200(1, gpm=False).fault(0, "power_mw", NO_PERMISSION))
    folder = CellFolder(tmp_path / "cell")
    _sample_for(0.3, DeviceSampler(folder, _gpus(1), _no_pids, interval_s=0.1))
    series = _series(folder)
    assert set(series.values(gpu_uuid(0), "power_w")) == {None}
    assert series.unavailable["power_w"] == "insufficient permissions (GPU 0)"
    assert series.unavailable["sm_activity_percent"] == "not supported (GPU 0)"
    assert series.problems == ()


def test_a_gpu_that_vanishes_is_noted_once_and_the_others_go_on(
    fake_nvml: Use, tmp_path: Path
) -> None:
    scenario = Scenario().h200(2)
    gone_at = time.monotonic() - scenario.origin + 0.5
    fake_nvml(scenario.fault(1, "*", GPU_IS_LOST, at=gone_at))
    folder = CellFolder(tmp_path / "cell")
    sampler = DeviceSampler(folder, _gpus(2), _no_pids, interval_s=0.1)
    _sample_for(1.2, sampler)
    series = _series(folder)
    assert sampler.problems == ["GPU 1 is lost: GPU is lost"]
    assert series.problems == ("GPU 1 is lost: GPU is lost",)
    assert gpu_uuid(1) in series.samples[0] and gpu_uuid(1) not in series.samples[-1]
    assert all(gpu_uuid(0) in row for row in series.samples)
    (alert,) = [a for a in series.alerts if a.condition != "throttling"]
    assert (alert.level, alert.condition, alert.device_id) == ("error", "lost", gpu_uuid(1))
    assert (alert.title, alert.text) == ("GPU 1: lost", "GPU 1 is lost: GPU is lost")


def test_what_the_driver_reports_is_noted_and_an_alert(fake_nvml: Use, tmp_path: Path) -> None:
    scenario = Scenario().h200(2).mig(1, 3)
    later = time.monotonic() - scenario.origin + 0.3
    scenario.xid(0, 31, later).xid(1, 79, later + 0.1).xid(1, 79, later + 0.2)
    fake_nvml(scenario)
    folder = CellFolder(tmp_path / "cell")
    gpus: dict[str, int | None] = {gpu_uuid(0): 0, gpu_uuid(1): 1, mig_uuid(1, 3): None}
    sampler = DeviceSampler(folder, gpus, _no_pids, interval_s=0.1)
    _sample_for(1.4, sampler)
    page_fault, bus = (
        "GPU 0: the driver reported XID 31, memory page fault in a kernel",
        "GPU 1: the driver reported XID 79, fallen off the bus",
    )
    assert sampler.problems == [page_fault, bus]
    found = [
        (a.level, a.device_id, a.title, a.text)
        for a in _series(folder).alerts
        if a.condition == "xid"
    ]
    assert found == [
        ("warn", gpu_uuid(0), "GPU 0: XID 31, memory page fault in a kernel", page_fault),
        ("error", gpu_uuid(1), "GPU 1: XID 79, fallen off the bus", bus),
        # A MIG instance suffers what its GPU does.
        ("error", mig_uuid(1, 3), "GPU 1: XID 79, fallen off the bus", bus),
    ]


def test_a_driver_that_lets_nobody_hear_of_xids_says_so_once(
    fake_nvml: Use, tmp_path: Path
) -> None:
    fake_nvml(Scenario().h200(1).fault(0, "events", NO_PERMISSION))
    folder = CellFolder(tmp_path / "cell")
    sampler = DeviceSampler(folder, _gpus(1), _no_pids, interval_s=0.1)
    _sample_for(0.3, sampler)
    assert sampler.problems == []
    assert _series(folder).unavailable["xid"] == "insufficient permissions (GPU 0)"


def test_a_driver_reload_is_survived(
    fake_nvml: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "SLOW_INTERVAL_S", 0.3)
    scenario = Scenario().h200(2)
    now = time.monotonic() - scenario.origin
    fake_nvml(scenario.fault("*", "*", VERSION_MISMATCH, at=now + 0.4, until=now + 0.9))
    folder = CellFolder(tmp_path / "cell")
    sampler = DeviceSampler(folder, _gpus(2), _no_pids, interval_s=0.1)
    _sample_for(1.8, sampler)
    lost, back = sampler.problems[:2], sampler.problems[2:]
    assert lost == [f"GPU {i} is lost: RM has detected an NVML/RM version mismatch" for i in (0, 1)]
    assert back == ["GPU 0 answers again", "GPU 1 answers again"]
    assert set(_series(folder).samples[-1]) == set(_gpus(2))


def test_a_gpu_that_is_not_there_is_said(fake_nvml: Use, tmp_path: Path) -> None:
    fake_nvml(Scenario().h200(1))
    folder = CellFolder(tmp_path / "cell")
    sampler = DeviceSampler(folder, _gpus(2), _no_pids, interval_s=0.1)
    _sample_for(0.3, sampler)
    assert sampler.problems == [f"GPU {gpu_uuid(1)} is not there and is not sampled"]
    assert [d.id for d in _series(folder).devices] == [gpu_uuid(0)]


def test_without_a_driver_the_processes_are_sampled_and_the_reason_recorded(
    fake_nvml: Use, tmp_path: Path
) -> None:
    fake_nvml(Scenario().h200(1).fault("*", "init", VERSION_MISMATCH))
    folder = CellFolder(tmp_path / "cell")
    sampler = DeviceSampler(folder, _gpus(1), lambda: {0: os.getpid()}, interval_s=0.1)
    _sample_for(0.35, sampler)
    series = _series(folder)
    assert series.source == "process"
    assert "version mismatch" in series.problems[0] and "processes" in series.problems[0]
    assert len(series.times) >= 3


def test_a_cpu_host_samples_processes_that_start_late(tmp_path: Path) -> None:
    folder, ranks = CellFolder(tmp_path / "cell"), dict[int, int]()
    with DeviceSampler(folder, {}, lambda: ranks, interval_s=0.1):
        time.sleep(0.25)
        ranks[1] = os.getpid()
        time.sleep(0.45)
    series = _series(folder)
    assert series.source == "process"
    assert [(d.id, d.name, d.rank) for d in series.devices] == [("rank1", "process of rank 1", 1)]
    rss = series.values("rank1", "memory_used_mib")
    assert len(rss) >= 4 and all(v is not None and v > 10 for v in rss)


def test_the_record_begins_with_the_ranks(tmp_path: Path) -> None:
    folder = CellFolder(tmp_path / "cell")
    ranks: list[dict[int, int] | None] = [None]
    with DeviceSampler(folder, {}, lambda: ranks[-1], interval_s=0.1):
        time.sleep(0.25)
        assert folder.device_series_paths() == []
        ranks.append({0: os.getpid()})
        time.sleep(0.35)
    assert _series(folder).times
    with DeviceSampler(CellFolder(tmp_path / "never"), {}, lambda: None, interval_s=0.1):
        pass
    assert not (tmp_path / "never").exists()


def test_cells_of_one_process_keep_their_own_gpus(fake_nvml: Use, tmp_path: Path) -> None:
    fake_nvml(Scenario().h200(2))
    folders = [CellFolder(tmp_path / name) for name in ("first", "second")]
    first, second = (
        DeviceSampler(folder, {gpu_uuid(i): 0}, _no_pids, interval_s=0.1)
        for i, folder in enumerate(folders)
    )
    with first:
        with second:
            time.sleep(0.5)
        ended_at = time.time()
        time.sleep(0.5)
    for gpu, folder in enumerate(folders):
        series = _series(folder)
        assert series.problems == ()
        assert all(set(row) == {gpu_uuid(gpu)} for row in series.samples)
    assert _series(folders[0]).times[-1] > ended_at > _series(folders[1]).times[-1]


def test_what_the_driver_reports_of_another_cells_gpu_is_not_told(
    fake_nvml: Use, tmp_path: Path
) -> None:
    scenario = Scenario().h200(2)
    fake_nvml(scenario.xid(1, 79, time.monotonic() - scenario.origin + 0.2))
    folder = CellFolder(tmp_path / "cell")
    sampler = DeviceSampler(folder, _gpus(1), _no_pids, interval_s=0.1)
    _sample_for(1.3, sampler)
    assert sampler.problems == [] and not [
        a for a in _series(folder).alerts if a.condition == "xid"
    ]


def test_a_full_disk_ends_the_record_and_nothing_else(tmp_path: Path) -> None:
    folder = CellFolder(tmp_path / "cell")
    folder.path.mkdir()
    (folder.path / "gpu").write_text("a file where the folder should be")
    sampler = DeviceSampler(folder, {}, lambda: {0: os.getpid()}, interval_s=0.1)
    _sample_for(0.25, sampler)
    (problem,) = sampler.problems
    assert problem.startswith("device samples are no longer recorded: ")


def test_an_error_in_the_thread_is_recorded_not_raised(tmp_path: Path) -> None:
    asked: list[None] = []

    def broken() -> dict[int, int]:
        asked.append(None)
        if len(asked) > 1:
            raise RuntimeError("no pids today")
        return {}

    folder = CellFolder(tmp_path / "cell")
    sampler = DeviceSampler(folder, {}, broken, interval_s=0.1)
    _sample_for(0.1, sampler)
    assert sampler.problems == ["sampling ended early: RuntimeError: no pids today"]
    assert _series(folder).problems == tuple(sampler.problems)


def test_stop_before_start_and_twice_is_harmless(tmp_path: Path) -> None:
    sampler = DeviceSampler(CellFolder(tmp_path), {}, _no_pids)
    sampler.stop()
    sampler = DeviceSampler(CellFolder(tmp_path), {}, _no_pids)
    sampler.start()
    sampler.stop()
    sampler.stop()
    assert not any(t.name == "scalewise-sampler" for t in threading.enumerate())


def test_an_interval_below_a_tenth_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"interval_s: found 0.01; allowed: 0.1 or more"):
        DeviceSampler(CellFolder(tmp_path), {}, _no_pids, interval_s=0.01)
