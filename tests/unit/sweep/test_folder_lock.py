"""One sweep at a time in a folder, and what does not count as one."""

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from scalewise.cli.exits import explain
from scalewise.config import ConfigError
from scalewise.host import FileLock
from scalewise.records import SweepFolder
from scalewise.sweep import compose
from scalewise.sweep.resume import lock_folder


def test_a_second_sweep_is_refused_while_the_first_one_runs(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "a" / "sweep")
    with (
        lock_folder(folder),
        pytest.raises(ConfigError, match=r"a/sweep: found process \d+, .*; allowed: wait"),
        lock_folder(folder),
    ):
        pass
    with pytest.raises(ZeroDivisionError), lock_folder(folder):
        raise ZeroDivisionError
    with lock_folder(folder):
        assert folder.path.is_dir()


def test_whoever_asks_whether_a_sweep_runs_keeps_none_from_starting(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    folder.lock_path.write_text("123456789\n")
    asking = FileLock(folder.lock_path)
    assert asking.try_acquire()
    threading.Timer(0.05, asking.release).start()
    with lock_folder(folder):
        assert not asking.descriptors
        assert folder.lock_path.read_text() == f"{os.getpid()}\n", "who took it last"


@pytest.fixture
def left(tmp_path: Path) -> Iterator[int]:
    """The process id of a rank that a killed sweep has left, and that holds its lock."""
    script = (
        "import os, signal, subprocess, sys; from pathlib import Path;"
        "from scalewise.records import SweepFolder;"
        "from scalewise.sweep.resume import lock_folder;"
        "context = lock_folder(SweepFolder(Path(sys.argv[1]))); lock = context.__enter__();"
        "child = subprocess.Popen(['sleep', '60'], stdout=-3, pass_fds=lock.descriptors);"
        "print(child.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    pid = int(subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout)
    yield pid
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_what_a_killed_sweep_has_left_is_waited_for(tmp_path: Path, left: int) -> None:
    ends = threading.Timer(1, os.kill, (left, signal.SIGKILL))
    ends.start()
    with lock_folder(SweepFolder(tmp_path)):
        assert ends.finished.is_set()
    ends.join()


@pytest.mark.usefixtures("left")
def test_what_does_not_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalewise.sweep.resume._RANKS_END_S", 0.5)
    with pytest.raises(ConfigError, match=r"was killed and what it left still runs"):
        lock_folder(SweepFolder(tmp_path)).__enter__()


def test_a_folder_that_cannot_be_made_is_wrong_input(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"^hydra\.sweep\.dir: .*/file/sweep cannot be made"):
        lock_folder(SweepFolder(tmp_path / "file" / "sweep")).__enter__()


def test_a_link_instead_of_the_lock_leads_to_no_other_file(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    folder = SweepFolder(tmp_path / "sweep")
    folder.path.mkdir()
    folder.lock_path.symlink_to(precious)
    with pytest.raises(OSError, match="symbolic link") as raised, lock_folder(folder):
        pass
    assert precious.read_text() == "mine"
    assert explain(raised.value).startswith(f"{folder.lock_path}: ")


def test_a_full_disk_keeps_nobody_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "pwrite", Mock(side_effect=full))
    with lock_folder(SweepFolder(tmp_path)):
        pass


# Where the shipped configuration lies and where sweeps go.
@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    compose._new_folder.cache_clear()
    yield
    compose._new_folder.cache_clear()


def begun(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "sweep.json").write_text("{}")
    return folder


def test_one_process_has_one_new_folder_and_two_have_two() -> None:
    first = compose.sweep_folder([])
    assert compose.sweep_folder(["seed=1"]) == first
    compose._new_folder.cache_clear()
    assert compose.sweep_folder([]) != first


@pytest.mark.parametrize("spelling", ["sweep.resume={}", "+sweep.resume={}", "sweep.resume='{}'"])
def test_a_sweep_that_was_begun_is_resumed(tmp_path: Path, spelling: str) -> None:
    folder = begun(tmp_path / "old sweep")
    assert compose.sweep_folder(["seed=1", spelling.format(folder)]) == str(folder)


@pytest.mark.parametrize("value", ["null", "", "nowhere"])
def test_a_sweep_that_was_never_begun_is_not(value: str) -> None:
    assert compose.sweep_folder([f"sweep.resume={value}"]).startswith("multirun/")


def test_only_a_new_folder_without_a_sweep_is_removed(tmp_path: Path) -> None:
    resumed = begun(tmp_path / "old")
    compose.discard_unused_folder([resumed, tmp_path / "none"])
    compose.sweep_folder([f"sweep.resume={resumed}"])
    new = Path(compose.sweep_folder([]))
    (new / ".hydra").mkdir(parents=True)
    compose.discard_unused_folder()
    assert not new.exists()
    begun(new)
    compose.discard_unused_folder()
    assert new.exists()
    assert resumed.exists()
