"""A sweep samples a cell's devices from the start of its ranks to its end."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fakes.requests import asked
from fakes.train_command import wait_for
from scalewise.records import CellFolder, DeviceInfo, RunningAttempt, read_device_series
from scalewise.sweep import Cell
from scalewise.sweep.plan import plan
from scalewise.sweep.running_cells import start_sampler

SLOT = DeviceInfo("cpu", "a processor")


@pytest.fixture
def cell() -> Cell:
    typed = ["tracking=none", "monitor.interval_s=0.1"]
    return plan([asked(*typed)], 0)[0]


def test_the_ranks_of_this_try_are_sampled(cell: Cell, tmp_path: Path) -> None:
    folder = CellFolder(tmp_path / "cell")
    killed = RunningAttempt(1, 1.0, (SLOT,), (1,))
    folder.save_running(killed)
    sampler = start_sampler(cell.request.cell, folder, (SLOT,))
    assert sampler is not None
    time.sleep(0.3)
    assert folder.device_series_paths() == [], "what a killed try left is not ours"
    folder.save_running(RunningAttempt(1, 2.0, (SLOT,)))
    time.sleep(0.3)
    assert folder.device_series_paths() == [], "its ranks have not started"
    folder.save_running(RunningAttempt(1, 2.0, (SLOT,), (os.getpid(),)))
    wait_for(folder.device_series_paths, "the series", 10)
    time.sleep(0.3)
    folder.clear_running()
    sampler.stop()
    (path,) = folder.device_series_paths()
    series = read_device_series(path)
    assert (series.source, [d.rank for d in series.devices]) == ("process", [0])
    assert series.values("rank0", "memory_used_mib")[-1] is not None


def test_a_cell_that_wants_no_samples_gets_no_sampler(tmp_path: Path) -> None:
    typed = ["tracking=none", "monitor.devices=false"]
    config = asked(*typed).cell
    assert start_sampler(config, CellFolder(tmp_path / "cell"), (SLOT,)) is None
