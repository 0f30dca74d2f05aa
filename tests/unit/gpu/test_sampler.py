"""Groups of metrics, loss and faults of GPUs, and processes where there are none."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from unittest.mock import MagicMock, Mock, call

import psutil
import pytest

from fakes.nvml.fixture import FakeNvml
from fakes.nvml.scenario import GPU_IS_LOST, NO_PERMISSION, VERSION_MISMATCH, Scenario, gpu_uuid
from scalewise import records
from scalewise.gpu import DeviceSampler, readers, stats_path
from scalewise.gpu.export import export_cell, multi_gpu_path
from scalewise.gpu.nvml import GpuDevice
from scalewise.gpu.sampler import Ticks
from scalewise.gpu.xid import PATIENCE, DeviceAlerts
from scalewise.records import CellFolder, DeviceSample, DeviceSeries, read_device_series

Pids = Callable[[], dict[int, int]]


def _series(folder: CellFolder) -> DeviceSeries:
    (path,) = folder.device_series_paths()
    return read_device_series(path)


def _gpus(count: int) -> dict[str, int]:
    return {gpu_uuid(i): i for i in range(count)}


def _sample(
    tmp_path: Path, gpus: dict[str, int], seconds: float, pids: Pids = dict
) -> DeviceSeries:
    """A cell's series at 10 Hz."""
    folder = CellFolder(tmp_path / "cell")
    with closing(DeviceSampler(folder, gpus, pids, interval_s=0.1)):
        time.sleep(seconds)
    return _series(folder)


def test_a_series_has_each_group_at_its_pace(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    scenario = Scenario().h200(4).value(0, "wait.energy_mj", 3500)
    now = time.monotonic() - scenario.origin
    scenario.fault(1, "power_mw", NO_PERMISSION).fault(3, "*", GPU_IS_LOST, at=now + 1.5)
    scenario.xid(2, 79, now + 0.3)  # another cell's GPU
    scenario.xid(0, 31, now + 0.3).xid(1, 79, now + 0.4).xid(1, 79, now + 0.5)
    fake_nvml(scenario)
    gpus = {gpu_uuid(0): 0, gpu_uuid(1): 1, gpu_uuid(3): 2, "GPU-x": 3}
    series = _sample(tmp_path, gpus, 2.5)

    assert series.source == "nvml" and [d.id for d in series.devices] == list(gpus)[:3]
    first = series.devices[0]
    assert (first.rank, first.index, first.memory_total_mib) == (0, 0, 143_771)
    assert list(series.times) == sorted(set(series.times))
    assert all(set(row) >= set(list(gpus)[:2]) for row in series.samples)
    assert all(cost is not None and cost > 0 for cost in series.cost_ms)

    power, energy, sm, processes = (
        [v for v in series.values(gpu_uuid(0), name) if v is not None]
        for name in ("power_w", "energy_j", "sm_activity_percent", "processes")
    )
    assert len(power) == len(series.times) > len(sm)
    assert len(energy) == 2, "the slow group is read at the start and at the end"
    joules = 600 * (series.times[-1] - series.times[0])
    assert energy[1] - energy[0] == pytest.approx(joules, rel=0.05)
    assert 2 <= len(sm) <= len(processes) < len(power), "GPM and processes once a second"

    assert set(series.values(gpu_uuid(1), "power_w")) == {None}
    assert series.unavailable["power_w"] == "insufficient permissions (GPU 1)"
    assert gpu_uuid(3) in series.samples[0] and gpu_uuid(3) not in series.samples[-1]
    page_fault, bus, lost = (
        "GPU 0: the driver reported XID 31, memory page fault in a kernel",
        "GPU 1: the driver reported XID 79, fallen off the bus",
        "GPU 3 is lost: GPU is lost",
    )
    absent = "GPU GPU-x is not there and is not sampled"
    assert sorted(series.problems) == [page_fault, bus, lost, absent]
    assert {(a.level, a.device_id, a.title, a.text) for a in series.alerts} >= {
        ("warn", gpu_uuid(0), "GPU 0: XID 31, memory page fault in a kernel", page_fault),
        ("error", gpu_uuid(1), "GPU 1: XID 79, fallen off the bus", bus),
        ("error", gpu_uuid(3), "GPU 3: lost", lost),
    }
    assert len([a for a in series.alerts if a.condition == "xid"]) == 2


def test_the_earlier_monitors_files_grow_in_training(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    fake_nvml(Scenario().h200(2))
    folder = CellFolder(tmp_path / "cell")
    paths = [stats_path(folder), multi_gpu_path(stats_path(folder))]
    folder.path.mkdir()
    paths[0].write_text("[1]")  # of an earlier try
    with closing(DeviceSampler(folder, _gpus(2), dict, 0.1, stats_path(folder))):
        time.sleep(0.35)
        grown = [json.loads(path.read_text()) for path in paths]
    assert all(len(entries) >= 2 for entries in grown)
    assert grown[0][0]["utilization"] == 88 and grown[1][0]["aggregate_stats"]["gpu_count"] == 2
    live = [path.read_text() for path in paths]
    export_cell(folder, folder.path)
    assert live == [path.read_text() for path in paths], "what scalewise export writes"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """A clock that nothing else moves; each reading takes one and a half seconds."""
    now = [0.0]
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now[0])
        patch.setattr(time, "perf_counter", cycle([1.0, 2.5]).__next__)
        patch.setattr(time, "time", lambda: 5.0)
        yield now


def test_each_group_is_read_when_it_is_due_and_slow_ones_gpu_by_gpu(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    """Together, slow ones of eight real GPUs would take longer than a beat at 10 Hz."""
    monkeypatch.setattr(readers, "XidWatch", Mock(return_value=Mock(read=list)))
    gpus = [GpuDevice(i, gpu_uuid(i), "NVIDIA H200", None, None, None) for i in range(8)]
    nvml = Mock(faults={}, unavailable={}, devices=lambda: gpus, sample=Mock(return_value=_FINE))
    reader = readers.GpuReader(nvml, 1.5)
    for now, gpm, slow in (
        (50.0, True, [0, 1]), (100.0, True, [*range(8)]), (100.25, False, []), (100.5, True, []),
        (109.25, True, []), (109.5, False, [0, 1]), (111.0, True, [2, 3]), (118.75, True, [4, 5]),
        (120.0, True, [6, 7]), (120.25, False, [0, 1]),
    ):  # fmt: skip
        clock[0] = now
        reading = reader.read(all_groups=now == 100.0)
        assert reading == readers.Reading(5.0, 1500.0, {one.uuid: _FINE for one in gpus}, {}, [])
        asked = [call(one, slow=one.index in slow, gpm=gpm) for one in gpus]
        assert nvml.sample.call_args_list[-8:] == asked


@pytest.mark.parametrize("broken", [None, OSError("the driver went away")])
def test_without_a_driver_the_processes_are_sampled_and_the_reason_recorded(
    fake_nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: OSError | None
) -> None:
    fake_nvml(Scenario().h200(1).fault("*", "init", VERSION_MISMATCH))
    reason = "version mismatch (NVML error 18)"
    if broken is not None:
        reason = str(broken)
        monkeypatch.setattr("scalewise.gpu.sampler.open_nvml", Mock(side_effect=broken))
    series = _sample(tmp_path, _gpus(1), 0.35, lambda: {0: os.getpid()})
    assert series.source == "process"
    (told,) = series.problems
    assert told.endswith(f"{reason}; the ranks' processes are sampled instead")
    assert len(series.times) >= 3


@pytest.mark.parametrize("where", ["utilization", "power_limit_mw"])
def test_a_driver_that_hangs_is_told_in_the_record_which_ends(
    fake_nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr("scalewise.gpu.sampler._STOP_TIMEOUT_S", 0.2)
    fake_nvml(Scenario().h200(1).value(0, f"wait.{where}", 1e6))
    (told,) = _sample(tmp_path, _gpus(1), 0.1).problems
    assert "a driver call hangs" in told
    for thread in threading.enumerate():  # the driver of the next test is another one
        if thread.name == "scalewise-sampler":
            thread.join()


def test_a_cpu_host_samples_processes_that_start_late(tmp_path: Path) -> None:
    folder, ranks = CellFolder(tmp_path / "cell"), dict[int, int]()
    with closing(DeviceSampler(folder, {}, lambda: ranks, interval_s=0.1)):
        time.sleep(0.25)
        ranks[1] = os.getpid()
        time.sleep(0.45)
    series = _series(folder)
    assert series.source == "process"
    assert [(d.id, d.name, d.rank) for d in series.devices] == [("rank1", "process of rank 1", 1)]
    rss = series.values("rank1", "memory_used_mib")
    assert len(rss) >= 4 and all(v is not None and v > 10 for v in rss)


def test_a_full_disk_ends_records_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = CellFolder(tmp_path / "cell")
    folder.path.mkdir()
    (folder.path / "gpu").write_text("a file where the folder should be")
    with closing(DeviceSampler(folder, {}, lambda: {0: os.getpid()}, interval_s=0.1)):
        time.sleep(0.25)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("scalewise: device samples are no longer recorded: ")


def test_an_error_in_the_thread_is_recorded_not_raised(tmp_path: Path) -> None:
    series = _sample(tmp_path, {}, 0.1, Mock(side_effect=[{}, RuntimeError("no pids today")]))
    assert series.problems == ("sampling ended early: RuntimeError: no pids today",)


def test_a_missed_beat_is_counted_and_delays_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as clock:
        clock.setattr(time, "monotonic", iter([0.0, 0.25, 2.25, 2.375]).__next__)
        ticks = Ticks(0.5)
        waits = [ticks.wait_s() for _ in range(3)]
    assert (waits, ticks.kept, ticks.missed) == ([0.25, 0.0, 0.125], 3, 2)


_BUSY = "while True: pass"
_PARENT = f"""
import os, subprocess, sys
child = subprocess.Popen("{sys.executable} -c '{_BUSY}' & echo; wait", shell=True, process_group=0)
sys.stdin.read()
os.killpg(child.pid, 9); child.wait()
"""


def test_cpu_and_memory_of_a_rank_include_its_children() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        parent.stdout.readline()
        reader = readers.ProcessReader(lambda: {3: parent.pid})
        first = reader.read().samples["rank3"]
        time.sleep(0.5)
        second = reader.read().samples["rank3"]
        every = [parent.pid, *(p.pid for p in psutil.Process(parent.pid).children(recursive=True))]
        apart = readers.ProcessReader(lambda: dict(enumerate(every))).read().samples
        parent.stdin.close()
    assert first.utilization_percent is None
    # The parent sleeps: whatever ran was the child. Two cores may be shared with others.
    assert second.utilization_percent is not None and 10 < second.utilization_percent < 110
    assert second.memory_used_mib is not None and second.memory_used_mib > 8
    assert second.power_w is None
    assert len(apart) == 3 and (apart["rank0"].memory_used_mib or 0) < second.memory_used_mib


def test_a_rank_has_used_what_its_processes_used_since_the_last_reading(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    def process(pid: int, rss_mib: int, *cpu_s: tuple[float, float]) -> MagicMock:
        times = [Mock(user=user, system=system) for user, system in cpu_s]
        memory = Mock(return_value=Mock(rss=rss_mib * 2**20))
        return MagicMock(pid=pid, cpu_times=Mock(side_effect=times), memory_info=memory)

    root = process(7, 3, (1.0, 0.25), (1.0, 0.25), (1.0, 0.3125), (1.5, 0.5), (1.5, 0.5))
    old, born = process(8, 5, *[(0.5, 0.25)] * 5), process(9, 8, (0.25, 0.225))
    monkeypatch.setattr(psutil, "Process", lambda pid: root)
    new = [records.SampledDevice("rank3", 3, "process of rank 3", 3)]
    reader = readers.ProcessReader(lambda: {3: 7})
    for now, children, percent, rss_mib in (
        (0.0, [old], None, 8.0), (0.04, [], None, 8.0), (0.05, [], 125.0, 8.0),
        (1.05, [], 68.75, 8.0), (2.0, [old, born], 50.0, 16.0),
    ):  # fmt: skip
        clock[0], root.children.return_value = now, children
        read = {"rank3": DeviceSample("rank3", percent, rss_mib)}
        assert reader.read() == readers.Reading(5.0, 1500.0, read, new=[] if now else new)


def test_a_process_that_is_ending_has_no_memory_and_one_that_is_gone_no_sample() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        reader, later = (readers.ProcessReader(lambda: {0: child.pid}) for _ in range(2))
        living = reader.read().samples["rank0"]
        assert living.memory_used_mib is not None and living.memory_used_mib > 0
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie until it is waited for
        assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
        time.sleep(0.1)
        dead = reader.read().samples["rank0"]
    assert later.read().samples == {}, "gone"
    assert dead.memory_used_mib is None
    assert dead.utilization_percent is not None


# Each condition is said once, and only where a person can do something about it.
_DEVICE = records.SampledDevice("GPU-a", 3, "NVIDIA H200", memory_total_mib=1000.0)
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
        ([_FINE, _UNREAD, _WORSE, _WORSE],
         [(2, "warn", "ecc"), (2, "error", "ecc"), (2, "warn", "ecc")]),
        (_FULL, [(1, "warn", "memory")]),
        ([_LONG], [(0, "warn", "throttling")]),
    ],
)  # fmt: skip
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
