from __future__ import annotations

import os
from pathlib import Path

import pytest

from fakes.step_files import steady_rows, write_old_rows, write_rows
from scalewise.records import LineTail, RecordError, ReplacedError, StepTail, StepWriter


def test_lines_are_read_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    tail = LineTail(path)
    assert tail.read() == []
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n{"a"')
    assert tail.read() == [{"a": 1}, {"a": 2}]
    assert tail.read() == []
    with path.open("ab") as file:
        file.write(b": 3}\n")
    assert tail.read() == [{"a": 3}]


def test_every_cut_of_a_step_file_is_survived(tmp_path: Path) -> None:
    source = tmp_path / "source.bin"
    writer = StepWriter(source)
    for step in range(1, 6):
        writer.append(step, step, 0, 4, 0, {"step": 1.5}, None)
    writer.close()
    data = source.read_bytes()
    path = tmp_path / "rank0.bin"
    path.write_bytes(b"")
    tail = StepTail(path)
    found: list[int] = []
    for start in range(0, len(data), 61):
        with path.open("ab") as file:
            file.write(data[start : start + 61])
        found += tail.read()["step"].tolist()
    assert found == [1, 2, 3, 4, 5]
    assert tail.epoch_offset_ns is not None


def test_an_old_step_file_is_followed_and_a_changed_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank0.bin"
    write_old_rows(path, steady_rows(6))
    data = path.read_bytes()
    path.write_bytes(data[:-50])
    tail = StepTail(path)
    assert tail.read()["step"].tolist() == [0, 1, 2, 3, 4]
    path.write_bytes(data)
    assert tail.read()["step"].tolist() == [5]

    write_rows(path, steady_rows(6))
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    path.write_bytes(changed)
    with pytest.raises(RecordError, match="checksum"):
        StepTail(path).read()


@pytest.mark.parametrize("content", [b'{"a": 9}\n', b'{"a": 9}\n{"a": 8}\n{"a": 7}\n', b""])
def test_a_file_begun_anew_is_noticed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n')
    tail = LineTail(path)
    tail.read()
    path.write_bytes(content)
    with pytest.raises(ReplacedError, match=r"rows\.jsonl was begun anew"):
        tail.read()


def test_a_file_that_vanished_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n')
    tail = LineTail(path)
    tail.read()
    path.unlink()
    with pytest.raises(ReplacedError, match="removed"):
        tail.read()


def test_what_is_no_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"not json\n")
    with pytest.raises(RecordError, match=r"rows\.jsonl: not JSON"):
        LineTail(path).read()
    with pytest.raises(RecordError, match=r"rows\.jsonl: the header is not a step header"):
        StepTail(path).read()
    path.write_bytes(b'{"schema_version": 99, "dtype": [], "epoch_offset_ns": 0}\n')
    with pytest.raises(RecordError, match="schema version 99"):
        StepTail(path).read()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("tail", [LineTail, StepTail])
def test_a_pipe_is_named_and_not_waited_for(
    tmp_path: Path, tail: type[LineTail] | type[StepTail]
) -> None:
    path = tmp_path / "rows"
    os.mkfifo(path)
    with pytest.raises(RecordError, match=r"rows: cannot be read: .* it is no regular file"):
        tail(path).read()


def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"cannot be read: .*Is a directory"):
        LineTail(tmp_path).read()
