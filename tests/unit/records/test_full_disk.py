"""A record that a full disk does not take is named."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from scalewise.cli.exits import explain
from scalewise.records.files import write_atomically


def test_a_full_disk_is_said_of_the_record_and_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sweep.json"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as raised:
        write_atomically(path, b"new")
    assert explain(raised.value) == f"{path}: No space left on device"
    assert [entry.name for entry in tmp_path.iterdir()] == ["sweep.json"]
    assert path.read_text() == "old"


@pytest.mark.parametrize("number", [errno.EPERM, errno.EISDIR])
def test_what_a_folder_refuses_is_said_in_one_line(number: int) -> None:
    assert explain(OSError(number, os.strerror(number), "s/earlier/1")) is not None
