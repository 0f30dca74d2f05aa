"""One sweep at a time in a folder, and what does not count as one."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from scalewise.errors import ConfigError
from scalewise.gpu.election import FileLock
from scalewise.records import SweepFolder
from scalewise.sweep.folder_lock import SweepBusy, held


def test_a_second_sweep_is_refused_while_the_first_one_runs(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "a" / "sweep")
    with (
        held(folder),
        pytest.raises(SweepBusy, match=r"another process is running a sweep in .*/a/sweep; wait"),
        held(folder),
    ):
        pass
    with pytest.raises(ZeroDivisionError), held(folder):
        raise ZeroDivisionError
    with held(folder):
        assert folder.path.is_dir()


def test_whoever_asks_whether_a_sweep_runs_keeps_none_from_starting(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    asking = FileLock(folder.lock_path)
    assert asking.try_acquire()
    threading.Timer(0.05, asking.release).start()
    with held(folder):
        assert not asking.held


def test_a_folder_that_cannot_be_made_is_wrong_input(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    below = SweepFolder(tmp_path / "file" / "sweep")
    with pytest.raises(ConfigError, match=r"^hydra\.sweep\.dir: .*/file/sweep cannot be made"):
        held(below).__enter__()
