from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalewise.cli.exits import explain
from scalewise.host import FileLock, runtime_folder


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
from scalewise.host import FileLock
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


@pytest.mark.parametrize("name", ["link", "file", "file/below", "read-only", "open"])
def test_a_runtime_folder_that_cannot_be_used_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setenv("SCALEWISE_RUNTIME_DIR", str(tmp_path / name))
    if name == "read-only":
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(OSError, match="set SCALEWISE_RUNTIME_DIR to a folder of yours") as met:
        runtime_folder()
    line = explain(met.value)
    assert line is not None and line.startswith(f"{tmp_path / name}: it ")
