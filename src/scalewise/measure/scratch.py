"""A folder for the length of a process, that does not outlive it for long even if it is killed."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scalewise.gpu.election import FileLock, runtime_folder


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """An empty folder, removed at the end; those of dead processes are removed first.

    Raises OSError where the runtime folder cannot be used.
    """
    root = runtime_folder() / purpose
    root.mkdir(mode=0o700, exist_ok=True)
    _remove_abandoned(root)
    lock = _fresh_lock(root)
    folder = lock.path.with_suffix("")
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        _remove(lock)


def _fresh_lock(root: Path) -> FileLock:
    while True:
        lock = FileLock(root / f"{uuid.uuid4().hex}.lock")
        # Between creation and locking, somebody may have taken it for a dead one's.
        if lock.try_acquire() and lock.path.exists():
            return lock
        lock.release()


def _remove_abandoned(root: Path) -> None:
    for path in root.glob("*.lock"):
        lock = FileLock(path)
        if lock.try_acquire():
            _remove(lock)


def _remove(lock: FileLock) -> None:
    shutil.rmtree(lock.path.with_suffix(""), ignore_errors=True)
    lock.path.unlink(missing_ok=True)
    lock.release()
