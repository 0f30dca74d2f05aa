import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from scalewise.cli.exits import explain
from scalewise.host import FileLock, end_child, runtime_folder, worker_command


def test_a_lock_has_one_holder_even_inside_a_process(tmp_path: Path) -> None:
    one, two = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert one.try_acquire() and one.descriptors
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
        assert parent.stdout.readline() == b"born\n"
        parent.wait(10)
        lock = FileLock(path)
        assert lock.try_acquire(), "the child still waits for its input"
        lock.release()


@pytest.mark.parametrize("name", ["link", "file", "file/below", "read-only", "open", "theirs"])
def test_a_runtime_folder_that_cannot_be_used_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setenv("SCALEWISE_RUNTIME_DIR", str(tmp_path / name))
    if name == "theirs":
        monkeypatch.setattr(os, "getuid", lambda: -1)
    if name == "read-only":
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(OSError, match="set SCALEWISE_RUNTIME_DIR to a folder of yours") as met:
        runtime_folder()
    line = explain(met.value)
    assert line is not None and line.startswith(f"{tmp_path / name}: it ")


@pytest.mark.parametrize(("session", "found"), [("run", "run/scalewise"), ("gone", "scalewise-")])
def test_the_runtime_folder_is_the_sessions_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session: str, found: str
) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.delenv("SCALEWISE_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / session))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert str(runtime_folder()).startswith(str(tmp_path / found))


# What others see of a process that was forked into a rank.
_RANK = """
import sys
from scalewise.host import rename, worker_command
rename("rank 1", worker_command(sys.stdin.readline().strip()))
print("renamed", flush=True)
sys.stdin.read()
"""


def shown(folder: str, padding: int) -> tuple[str, list[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", _RANK, "-" * padding], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != "RANK"},
    ) as process:  # fmt: skip
        process.stdin.write(folder.encode() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"renamed\n"
        name = Path(f"/proc/{process.pid}/comm").read_text().strip()
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        process.communicate()
    return name, command.rstrip(b"\0").decode().split("\0")


def test_a_renamed_process_appears_as_the_rank_that_it_is() -> None:
    folder = "/my sweeps/medium-ddp-r0"
    assert shown(folder, 1000) == ("rank 1", [" ".join(worker_command(folder))])


def test_a_command_too_long_for_its_place_is_left_out_and_nothing_else_is_overwritten() -> None:
    assert shown("/" + "long" * 300, 0) == ("rank 1", [sys.executable, "-c", _RANK])


def test_a_child_is_killed_and_reaped_and_one_that_is_stuck_is_not_waited_for_for_ever() -> None:
    within_driver = Mock(wait=Mock(side_effect=subprocess.TimeoutExpired("driver", 1)))
    child = subprocess.Popen(["sleep", "60"])
    end_child(within_driver)
    end_child(child)
    assert (within_driver.kill.call_count, child.returncode) == (1, -9)
