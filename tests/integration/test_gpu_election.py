"""Several processes, one sampler: elected, followed, killed and replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fakes.nvml.scenario import Scenario, environment, gpu_uuid
from fakes.train_command import wait_for
from scalewise.gpu.election import FileLock
from scalewise.records import CellFolder, DeviceSeries, read_device_series

_CELL = """
import sys
from scalewise.gpu.sampler import DeviceSampler
from scalewise.records import CellFolder
folder, interval_s, *uuids = sys.argv[1:]
gpus = {uuid: rank for rank, uuid in enumerate(uuids)}
with DeviceSampler(CellFolder(folder), gpus, dict, float(interval_s)) as sampler:
    print("started", flush=True)
    sys.stdin.read()
print(sampler.problems, flush=True)
"""


class _Host:
    """A host with two fake GPUs, and cells on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = environment(Scenario().h200(2).write(folder / "scenario.txt"))
        self.env["SCALEWISE_RUNTIME_DIR"] = str(folder / "runtime")

    @contextmanager
    def cell(
        self, name: str, gpus: list[int], interval_s: float = 0.1
    ) -> Iterator[subprocess.Popen[str]]:
        arguments = [str(self.folder / name), str(interval_s), *map(gpu_uuid, gpus)]
        process = subprocess.Popen(
            [sys.executable, "-c", _CELL, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.env,
            text=True,
        )
        with process:
            assert process.stdout is not None and process.stdin is not None
            assert process.stdout.readline() == "started\n"
            try:
                yield process
            finally:
                process.stdin.close()

    def series(self, name: str) -> DeviceSeries:
        (path,) = CellFolder(self.folder / name).device_series_paths()
        return read_device_series(path)

    def wait_until_someone_samples(self) -> None:
        lock = FileLock(self.folder / "runtime" / "sampler.lock")
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if lock.path.exists() and not lock.try_acquire():
                return
            lock.release()
            time.sleep(0.02)
        raise AssertionError("nobody was elected within 10 s")


def test_cells_share_one_sampler_and_keep_their_own_gpus(tmp_path: Path) -> None:
    host = _Host(tmp_path)
    with host.cell("first", [0]):
        host.wait_until_someone_samples()
        with host.cell("second", [1]), host.cell("third", [0, 1], interval_s=0.5):
            time.sleep(2)
    first, second, third = (host.series(n) for n in ("first", "second", "third"))
    assert all(set(row) == {gpu_uuid(0)} for row in first.samples)
    assert all(set(row) == {gpu_uuid(1)} for row in second.samples)
    assert all(set(row) == {gpu_uuid(0), gpu_uuid(1)} for row in third.samples)
    # One sampler: the second cell's rows are readings that the first one's process took.
    shared = set(first.times) & set(second.times)
    assert len(shared) >= 3, (first.times, second.times)
    assert len(third.times) < len(second.times)
    assert first.problems == second.problems == third.problems == ()


def test_when_the_holder_is_killed_another_takes_over(tmp_path: Path) -> None:
    host = _Host(tmp_path)
    with host.cell("doomed", [0]) as doomed:
        host.wait_until_someone_samples()
        with host.cell("heir", [1]):
            time.sleep(1)
            os.kill(doomed.pid, signal.SIGKILL)
            killed_at = time.time()
            wait_for(lambda: host.series("heir").times[-1] > killed_at, "the heir's own", 30)
    assert host.series("doomed").times, "what was sampled before the kill can be read"
    assert host.series("doomed").times[-1] <= killed_at
