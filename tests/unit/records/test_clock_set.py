"""A clock that is set while a cell runs changes neither how long it took nor how fast it is."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fakes.settings import SETTINGS
from scalewise.records import (
    CellFolder,
    DeviceInfo,
    Ending,
    HeartbeatWriter,
    PlannedCell,
    read_heartbeat,
)
from scalewise.supervisor import Job, Origin
from scalewise.supervisor.attempt import Try
from scalewise.train.monitored_fit import FitRecords

HOURS_S = 2 * 3600.0


def set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - HOURS_S)


def test_a_try_takes_as_long_as_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CellFolder(tmp_path / "sweep" / "cell")
    slot = DeviceInfo("cpu", "a processor")
    planned = PlannedCell("id", "config", "cell", (), 0, 1)
    job = Job(str(folder.path), planned, SETTINGS, (slot,), Origin(str(tmp_path), (), ()))
    own = Try(job, folder, 1, time.time(), time.monotonic())
    set_back(monkeypatch)
    own.record_failure(Ending("failed", "exit", "it left", None, 1))
    (attempt,) = folder.attempts()
    assert abs(attempt.finished_at - attempt.started_at) > HOURS_S / 2
    assert attempt.elapsed_s is not None and 0 < attempt.elapsed_s < 60


def test_a_monitored_fit_takes_as_long_as_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = FitRecords(CellFolder(tmp_path / "mine"), 0)
    records.begin([DeviceInfo("cpu", "a processor")])
    set_back(monkeypatch)
    records.break_off(ValueError("mine"), 20)
    records.end()
    (attempt,) = CellFolder(tmp_path / "mine").attempts()
    assert attempt.elapsed_s is not None and 0 < attempt.elapsed_s < 60


def test_a_rank_goes_on_at_the_same_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = HeartbeatWriter(tmp_path / "rank0")
    writer.begin(100)
    set_back(monkeypatch)
    writer.beat(7, 112)
    writer.close()
    beat = read_heartbeat(tmp_path / "rank0")
    assert beat is not None
    assert 0 <= beat.time - beat.started_at < 60
