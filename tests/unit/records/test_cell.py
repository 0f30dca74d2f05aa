"""The JSON records of a cell: round trips, torn files, and what a new try leaves of the last."""

import contextlib
import dataclasses
import errno
import json
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from fakes.settings import SLOT, job_in
from scalewise.cli.exits import explain, is_the_hosts_fault
from scalewise.records import (
    SCHEMA_VERSION,
    CellFolder,
    Ending,
    HeartbeatWriter,
    RecordError,
    TrackerState,
    TrackingRecord,
    current_attempt,
    load_json,
    read_heartbeat,
)
from scalewise.records.files import write_atomically
from scalewise.supervisor.supervisor import Supervisor
from scalewise.train.monitored import FitRecords

KEPT = CellFolder(
    Path(__file__).parents[2] / "golden/stalled/h200x2_medium/medium-tabular-ddp-r0-e08c5c3b"
)
RESULT = KEPT.load_result()
SUMMARY = dataclasses.replace(RESULT.ranks[0], metrics={"val_loss": 0.5, "train_loss": None})
ATTEMPT = Ending("failed", "oom", "rank 0: no memory", 0, -9, None, ("last", "line ü"), 1, 1.0, 2.0)


@pytest.fixture
def folder(tmp_path: Path) -> CellFolder:
    return CellFolder(tmp_path / "cell")


def test_every_record_comes_back_as_it_was_written(folder: CellFolder) -> None:
    provenance = KEPT.load_provenance()
    error = Ending("failed", "disk", "full", 1, last_lines=("Traceback ...",))
    tracking = TrackingRecord(
        {"wandb": TrackerState("incomplete", 3, None, "here", "why")}, 2, ("slow",)
    )
    folder.save_result(RESULT)
    folder.save_rank(SUMMARY)
    folder.save_rank_error(error)
    folder.save_attempt(ATTEMPT)
    folder.save_provenance(provenance)
    folder.save_tracking(tracking)
    folder.save_config({"a": 1, "text": "ü, = '\" \n", "list": (1, None)})
    assert (folder.load_result(), folder.load_rank(0)) == (RESULT, SUMMARY)
    assert folder.load_rank_error(1) == error
    assert folder.load_rank_error(0) is None
    assert list(folder.attempts()) == [ATTEMPT]
    assert (folder.load_provenance(), folder.load_tracking()) == (provenance, tracking)
    assert folder.load_config() == {"a": 1, "text": "ü, = '\" \n", "list": [1, None]}


def test_a_configuration_of_another_kind_or_without_end_is_one_error(tmp_path: Path) -> None:
    bomb = "".join(f"x{i}: &x{i} [*x{i - 1}, *x{i - 1}]\n" for i in range(1, 40))
    endless = dict.fromkeys(("[" * 60_000, "a: &a [*a]", f"x0: &x0 [0, 0]\n{bomb}"), ".*nested")
    for text, said in {**endless, "a: [": "cannot be read", "- 1": "", "3": ""}.items():
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(RecordError, match=rf"config\.yaml: {said}"):
            CellFolder(tmp_path).load_config()
    (tmp_path / "record.json").write_text("[" * 100_000)
    with pytest.raises(RecordError, match=r"record\.json: .*nested too deeply"):
        load_json(tmp_path / "record.json", Ending)


def test_a_record_says_its_version_holds_no_nan_and_is_none_when_torn(folder: CellFolder) -> None:
    folder.save_result(RESULT)
    path = folder.path / "result.json"
    assert json.loads(path.read_text())["schema_version"] == SCHEMA_VERSION
    with pytest.raises(ValueError, match="JSON"):
        folder.save_result(dataclasses.replace(RESULT, started_at=float("nan")))
    assert folder.load_result() == RESULT, "the old record must survive a refused one"
    path.write_bytes(path.read_bytes()[:-2])
    assert not folder.is_done()


def leave_a_try(folder: CellFolder, log: str) -> None:
    for path in (folder.steps_path(0), folder.log_path(0, "err")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(log)


def test_a_new_try_deletes_nothing_of_a_run_that_ended(folder: CellFolder) -> None:
    for number in (1, 2):
        leave_a_try(folder, f"run {number}")
        (folder.path / "result.json").write_text("torn")
        folder.clear_attempt()
        kept = CellFolder(folder.path / "earlier" / str(number))
        for path in (kept.steps_path(0), kept.log_path(0, "err")):
            assert path.read_text() == f"run {number}"
        assert (kept.path / "result.json").read_text() == "torn"
        assert sorted(p.name for p in folder.path.iterdir()) == ["earlier"]


def test_a_crash_amid_loses_nothing(folder: CellFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_a_try(folder, "run")
    (folder.path / "result.json").write_text("torn")
    rename, left = Path.rename, [1]

    def crash(self: Path, target: Path) -> Path:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", crash)
        with pytest.raises(KeyboardInterrupt):
            folder.set_aside()
    folder.clear_attempt()
    kept = [path.read_text() for path in (folder.path / "earlier").rglob("*") if path.is_file()]
    assert sorted(kept) == ["run", "run", "torn"]


def test_a_new_try_follows_any_number_of_unrecorded_ones(folder: CellFolder) -> None:
    folder.clear_attempt()
    for log in ("killed", "killed again"):
        leave_a_try(folder, log)
        folder.clear_attempt()
        assert not folder.log_path(0, "err").exists()
    leave_a_try(folder, "recorded")
    folder.save_attempt(ATTEMPT)
    folder.clear_attempt()
    assert not folder.steps_path(0).exists()
    leave_a_try(folder, "killed after a recorded one")
    folder.clear_attempt()
    assert (folder.path / "attempts" / "1.logs" / "rank0.err").read_text() == "recorded"
    assert (list(folder.attempts()), folder.next_attempt_number()) == ([ATTEMPT], 2)


def test_a_mirror_gets_the_attempt_that_has_begun_and_then_how_it_ended(folder: CellFolder) -> None:
    folder.save_config({"a": 1})
    assert current_attempt(folder) is None
    folder.save_provenance(KEPT.load_provenance())
    begun = current_attempt(folder)
    assert (begun.number, begun.has_ended) == (1, False)
    for number in (1, 2, 10):
        ended = dataclasses.replace(ATTEMPT, number=number, finished_at=begun.stamp / 1e9)
        folder.save_attempt(ended)
        last = current_attempt(folder)
        assert (last.number, last.failure) == (number, ended)
    assert [one.number for one in folder.attempts()] == [1, 2, 10]
    assert folder.next_attempt_number() == 11


def test_threads_that_write_one_record_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "tracking.json"
    with ThreadPoolExecutor(8) as pool:
        for each in [pool.submit(write_atomically, path, b"x" * 50_000) for _ in range(200)]:
            each.result()
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"x" * 50_000, [path])


def test_a_record_that_appears_or_goes_while_it_is_looked_for_is_no_error(
    folder: CellFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads may ask for a record that one of them is about to write."""
    monkeypatch.setattr(Path, "exists", lambda path: True)
    assert folder.load_tracking() is None


def test_a_full_disk_is_said_of_the_record_and_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sweep.json"
    path.write_text("old")
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=full))
    with pytest.raises(OSError, match="No space left") as raised:
        write_atomically(path, b"new")
    assert is_the_hosts_fault(raised.value)
    assert explain(raised.value) == f"{path}: No space left on device"
    assert [entry.name for entry in tmp_path.iterdir()] == ["sweep.json"]
    assert path.read_text() == "old"
    for number in (errno.EPERM, errno.EISDIR):
        assert explain(OSError(number, os.strerror(number), "s/earlier/1")) is not None


@pytest.mark.parametrize(("number", "fails"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_file_system_that_cannot_keep_a_folders_names_is_no_fault(
    number: int, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record's own bytes are on the disk by then."""
    path, kept = tmp_path / "sweep.json", os.fsync
    path.write_text("old")

    def sync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        kept(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(OSError, match="error") if fails else contextlib.nullcontext():
        write_atomically(path, b"new")
    assert path.read_text() == "new"


HOURS_S = 2 * 3600.0


def test_a_clock_that_is_set_changes_neither_how_long_a_try_took_nor_its_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CellFolder(tmp_path / "sweep" / "cell")
    own = Supervisor(job_in(folder.path), cast(Any, None))
    records = FitRecords(CellFolder(tmp_path / "mine"), 0)
    records.begin([SLOT])
    writer = HeartbeatWriter(tmp_path / "rank0")
    writer.begin(100)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - HOURS_S)
    own.record_failure(Ending("failed", "exit", "it left", None, 1))
    records.fail(ValueError("mine"), 20)
    writer.beat(7, 112)
    writer.close()
    for one in (folder, CellFolder(tmp_path / "mine")):
        (attempt,) = one.attempts()
        assert attempt.elapsed_s is not None and 0 < attempt.elapsed_s < 60
    (attempt,) = folder.attempts()
    assert abs(attempt.finished_at - attempt.started_at) > HOURS_S / 2
    beat = read_heartbeat(tmp_path / "rank0")
    assert 0 <= beat.time - beat.started_at < 60
