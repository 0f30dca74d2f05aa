from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalewise.explain import explain
from scalewise.gpu.election import FileLock, Wish, WishBoard, runtime_folder
from scalewise.gpu.recorder import SeriesRecorder
from scalewise.gpu.spool import Reading, SpoolReader, SpoolWriter
from scalewise.records import DeviceSample, read_device_series


def test_a_lock_has_one_holder_even_inside_a_process(tmp_path: Path) -> None:
    one, two = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert one.try_acquire() and one.held
    assert not two.try_acquire()
    one.release()
    assert two.try_acquire()
    two.release()


_FORK = """
import os, sys
from pathlib import Path
from scalewise.gpu.election import FileLock
lock = FileLock(Path(sys.argv[1]))
assert lock.try_acquire()
if os.fork() == 0:  # a loader worker that outlives its parent
    print("born", flush=True)
    sys.stdin.read()
os._exit(0)
"""


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", _FORK, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"born\n"
        parent.wait(10)
        lock = FileLock(path)
        assert lock.try_acquire(), "the child still waits for its input"
        lock.release()


def test_wishes_of_the_living_are_read_and_those_of_the_dead_removed(tmp_path: Path) -> None:
    mine, theirs = WishBoard(tmp_path), WishBoard(tmp_path)
    mine.post(Wish(1.0, ("GPU-a",)))
    before = mine.changed_at_ns()
    theirs.post(Wish(0.1, ("GPU-b",)))
    dead = tmp_path / "wishes" / "dead"
    dead.write_text('{"interval_s": 0.2, "uuids": ["GPU-c"]}')
    assert sorted(w.interval_s for w in mine.read()) == [0.1, 1.0]
    assert not dead.exists()
    assert mine.changed_at_ns() != before
    theirs.withdraw()
    assert mine.read() == [Wish(1.0, ("GPU-a",))]
    mine.withdraw()


def test_a_runtime_folder_of_someone_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("SCALEWISE_RUNTIME_DIR", str(tmp_path / "link"))
    with pytest.raises(PermissionError, match="set SCALEWISE_RUNTIME_DIR"):
        runtime_folder()


def _reading(when: float, *, interval_s: float = 0.1, extra: bool = False) -> Reading:
    samples = {u: DeviceSample(u, power_w=when) for u in ("GPU-a", "GPU-b")}
    return Reading(when, interval_s, 0.2, extra, samples)


def test_the_spool_is_sliced_by_uuid_and_time(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path)
    reader = SpoolReader(tmp_path, since=2.0)
    for when in (1.0, 2.0, 3.0):
        writer.write(_reading(when))
    got = list(reader.read(frozenset({"GPU-b"})))
    assert [(r.time, list(r.samples)) for r in got] == [(2.0, ["GPU-b"]), (3.0, ["GPU-b"])]
    writer.write(_reading(4.0))
    assert [r.time for r in reader.read(frozenset({"GPU-b"}))] == [4.0]
    assert list(reader.read(frozenset({"GPU-z"}))) == []
    writer.close()


def test_a_new_writer_follows_on_a_torn_one(tmp_path: Path) -> None:
    reader, own = SpoolReader(tmp_path, since=0.0), frozenset({"GPU-a"})
    killed = SpoolWriter(tmp_path)
    killed.write(_reading(1.0))
    (segment,) = next(tmp_path.glob("spool*")).glob("*.jsonl")
    with segment.open("ab") as file:
        file.write(b'{"time": 2.0, "inter')
    assert [r.time for r in reader.read(own)] == [1.0]
    heir = SpoolWriter(tmp_path)
    heir.write(_reading(3.0))
    assert [r.time for r in reader.read(own)] == [3.0]
    killed.close()
    heir.close()


def test_old_segments_are_removed(tmp_path: Path) -> None:
    for n in range(9):
        writer = SpoolWriter(tmp_path)
        writer.write(_reading(float(n)))
        writer.close()
    assert len(list(next(tmp_path.glob("spool*")).glob("*.jsonl"))) == 4


def test_a_cell_that_wants_one_a_second_keeps_one_of_ten_and_every_slow_one(
    tmp_path: Path,
) -> None:
    recorder = SeriesRecorder(tmp_path / "gpu.jsonl", 1.0, [])
    recorder.begin("nvml", (), {})
    for n in range(30):
        recorder.accept(_reading(100 + n / 10, extra=n == 14))
    recorder.accept(_reading(100.0))  # older than the last: heard already
    recorder.close()
    series = read_device_series(tmp_path / "gpu.jsonl")
    assert series.times == (100.0, 101.0, 101.4, 102.0)


def test_a_runtime_folder_that_is_a_file_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "file/below"):
        monkeypatch.setenv("SCALEWISE_RUNTIME_DIR", str(tmp_path / name))
        with pytest.raises(OSError, match="set SCALEWISE_RUNTIME_DIR to a folder of yours") as met:
            runtime_folder()
        line = explain(met.value)
        assert line is not None and line.startswith(f"{tmp_path / name}: it ")


def test_a_runtime_folder_that_cannot_be_written_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALEWISE_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(PermissionError) as met:
        runtime_folder()
    line = explain(met.value)
    assert line is not None and line.startswith(f"{tmp_path}: it cannot be written; ")
