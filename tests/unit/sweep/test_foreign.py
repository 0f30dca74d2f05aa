"""Other people's processes on a GPU are never shared silently."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.nvml.fixture import FakeNvml
from fakes.nvml.scenario import Scenario
from scalewise import records
from scalewise.config import SweepConfig
from scalewise.gpu import Leases, Occupancy
from scalewise.gpu.leases import occupants, read_gpus
from scalewise.host import Colocation, FileLock
from scalewise.records import DeviceProcess, DeviceSample, DeviceSeriesWriter, Ending, SampledDevice
from scalewise.supervisor.others import foreign_processes
from scalewise.sweep.local_executor import DeviceWait

GPUS = tuple(records.DeviceInfo("cuda", "a GPU", f"GPU-{i}", i) for i in range(2))
BUSY = DeviceSample("GPU-0", processes=(DeviceProcess(4711, 900.0),))
FREE = DeviceSample("GPU-1", processes=(), memory_used_mib=600.0)


class Gpus:
    """What the driver says of two GPUs, at times that a test says."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.samples = {"GPU-0": BUSY, "GPU-1": FREE}
        self.leases = Leases(Occupancy(lambda: dict(self.samples), lambda: self.now_s))
        self.said: list[str] = []
        self.wait = DeviceWait(self.said.append, lambda: self.now_s)

    def lease(self, count: int) -> Any:
        self.now_s += 2
        return self.leases.try_lease(GPUS, count)

    def ending(self, **sweep: Any) -> Ending | None:
        config = SimpleNamespace(sweep=SweepConfig(**sweep))
        cell: Any = SimpleNamespace(request=SimpleNamespace(cell=config))
        return self.wait.ending(cell, self.leases, others_run=False)


@pytest.fixture
def gpus() -> Gpus:
    return Gpus()


def test_a_gpu_that_others_use_is_passed_over(gpus: Gpus) -> None:
    lease = gpus.lease(1)
    assert [slot.uuid for slot in lease.slots] == ["GPU-1"]
    gpus.leases.release(lease)
    assert gpus.lease(2) is None
    assert gpus.leases.foreign == {"GPU-0": "GPU 0 has process 4711 of others"}
    gpus.samples["GPU-0"] = replace(BUSY, processes=())
    assert gpus.lease(2) is not None


def test_what_ran_on_a_device_until_it_was_given_back_does_not_count(gpus: Gpus) -> None:
    """Two cells end within a second: the look for the first's devices has seen the second."""
    gpus.samples["GPU-0"] = FREE
    first, second = (gpus.leases.try_lease([gpu], 1) for gpu in GPUS)
    assert first is not None
    assert second is not None
    gpus.samples["GPU-1"] = replace(BUSY, id="GPU-1")
    gpus.now_s += 60
    gpus.leases.release(first)
    assert gpus.leases.try_lease(GPUS, 1) is not None
    gpus.samples["GPU-1"] = FREE
    gpus.leases.release(second)
    assert gpus.leases.try_lease(GPUS, 1) is not None


@pytest.mark.parametrize(("looks", "too_early_s"), [(1, 0.05), (4, 0.9)])
def test_who_may_vanish_is_looked_at_ten_times_a_second_and_who_stays_once(
    gpus: Gpus, looks: int, too_early_s: float
) -> None:
    for _ in range(looks):
        assert gpus.lease(2) is None
    assert gpus.leases.foreign_settles is (looks == 1)
    gpus.samples["GPU-0"] = replace(BUSY, processes=())
    gpus.now_s += too_early_s
    assert gpus.leases.try_lease(GPUS, 2) is None
    gpus.now_s += 1.2 * too_early_s
    assert gpus.leases.try_lease(GPUS, 2) is not None
    assert not gpus.leases.foreign_settles


def test_only_what_tells_of_others_is_read(fake_nvml: FakeNvml) -> None:
    """Counters take milliseconds a GPU, and a look is taken between any two cells."""
    fake_nvml(Scenario().h200(1).add("process 0 4711 900"))
    (sample,) = read_gpus().values()
    assert sample.processes == (DeviceProcess(4711, 900.0),)
    assert sample.memory_used_mib is not None
    assert sample.energy_j is None


def test_in_a_container_memory_is_the_only_sign_of_others() -> None:
    hidden = DeviceSample("GPU-0", processes=(), memory_used_mib=70_000.0)
    said = occupants(hidden)
    assert said == "70000 MiB held by processes that cannot be seen from here"
    assert occupants(replace(hidden, processes=None)) == said
    assert occupants(FREE) is None
    assert occupants(DeviceSample("GPU-0")) is None, "a driver that tells nothing"


def test_without_a_wait_it_is_decided_once_the_processes_are_there_to_stay(gpus: Gpus) -> None:
    gpus.lease(2)
    assert gpus.ending(foreign_wait_s=0) is None, "the last cell's may just be going"
    for _ in range(3):
        gpus.lease(2)
    ending = gpus.ending(foreign_wait_s=0)
    assert ending.outcome == "skipped" and ending.message.startswith("GPU 0 has process 4711")


def test_waiting_is_said_once_and_has_an_end(gpus: Gpus) -> None:
    for _ in range(4):
        gpus.lease(2)
    for _ in range(3):
        assert gpus.ending(foreign_wait_s=60) is None
    assert len(gpus.said) == 1
    assert "process 4711" in gpus.said[0]
    gpus.now_s += 61
    gpus.lease(2)
    ended = gpus.ending(foreign_wait_s=60)
    assert ended.outcome == "skipped"
    assert ended.message.endswith("for longer than sweep.foreign_wait_s=60")


def test_another_sweep_is_waited_for_without_end(gpus: Gpus) -> None:
    others = Leases()
    others.name = "the sweep in /theirs (process 4711)"
    assert others.try_lease(GPUS, 2) is not None
    assert gpus.lease(1) is None
    assert gpus.ending(foreign_wait_s=0) is None
    assert gpus.said == [f"waiting: {others.name} holds this host's devices"]


def test_who_else_computed_beside_a_cell_is_in_its_record(tmp_path: Path) -> None:
    folder = records.CellFolder(tmp_path)
    device = SampledDevice("GPU-0", 0, "a GPU")
    writer = DeviceSeriesWriter(folder.device_series_path("h"), "h", "nvml", 1.0, (device,))
    for pids in ((10,), (10, 4711), (10, 4711, 4712)):
        processes = tuple(DeviceProcess(pid, None) for pid in pids)
        writer.append(float(len(pids)), {"GPU-0": DeviceSample("GPU-0", processes=processes)}, 0.1)
    writer.close()
    foreign = ("process 4711 on GPU-0", "process 4712 on GPU-0")
    assert foreign_processes(folder, {10}, sees_host=True) == foreign
    assert foreign_processes(folder, {1}, sees_host=False) == ("2 other processes on GPU-0",)


def test_cells_of_all_sweeps_on_a_host_see_one_another(runtime: Path) -> None:
    one = Colocation("/sweeps/a", "cell-1")
    assert one.neighbours == ()
    same, other = Colocation("/sweeps/a", "cell-2"), Colocation("/sweeps/b", "cell-1")
    assert sorted(other.neighbours) == ["/sweeps/a/cell-1", "/sweeps/a/cell-2"]
    same.leave()
    one.look()
    assert one.neighbours == ("/sweeps/b/cell-1",)
    other.leave()
    one.look()
    assert one.neighbours == ("/sweeps/b/cell-1",), "it was there once"
    one.leave()
    assert list((runtime / "cells").iterdir()) == []


def test_what_a_killed_cell_left_is_no_neighbour(runtime: Path) -> None:
    one = Colocation("/sweeps/a", "cell-1")
    abandoned = runtime / "cells" / "0"
    abandoned.write_text("/sweeps/b\0cell-9")
    one.look()
    assert one.neighbours == ()
    assert not abandoned.exists()
    held = FileLock(runtime / "cells" / "1")
    assert held.try_acquire()
    one.look()
    assert one.neighbours == (), "a file that is not written yet says nothing"
