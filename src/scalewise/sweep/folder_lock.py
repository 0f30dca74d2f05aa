"""The lock that keeps a sweep's folder to one sweep at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from scalewise.config import ConfigError
from scalewise.host import FileLock
from scalewise.records import SweepFolder

_ASK_S = 0.2
"""``scalewise status`` has the lock of a sweep for far less than this."""
_RANKS_END_S = 15.0
"""Ranks of a sweep that was killed are ended within ``sweep.grace_s``, which is at most 8."""
_LOOK_S = 0.05


class SweepBusy(ConfigError):  # noqa: N818 - it says what is wrong
    """Another process is running a sweep in this folder, or what it left has not ended."""


@contextmanager
def lock_folder(folder: SweepFolder, lock: FileLock | None = None) -> Iterator[None]:
    """Make the folder, and keep every other sweep out of it by its ``lock``.

    Processes that a killed sweep has left are waited for. Raises :class:`SweepBusy` where a sweep
    runs in it already or something is left for too long, :class:`ConfigError` where it cannot be
    made.
    """
    lock = lock or FileLock(folder.lock_path)
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"hydra.sweep.dir: {folder.path} cannot be made: {error}") from error
    _wait_for(lock, folder.path)
    try:
        yield
    finally:
        lock.release()


def _wait_for(lock: FileLock, folder: Path) -> None:
    """Take a lock that others have, once they have ended. Raises :class:`SweepBusy`."""
    begun = time.monotonic()
    while not lock.try_acquire(f"{os.getpid()}\n"):
        waited_s, holder = time.monotonic() - begun, lock.holder().strip()
        if waited_s > _ASK_S and _has_open(holder, lock.path):
            raise SweepBusy(
                f"sweep.resume: another process ({holder}) is running a sweep in {folder}; "
                "wait for it or choose another folder"
            )
        if waited_s > _RANKS_END_S:
            raise SweepBusy(
                f"sweep.resume: the sweep in {folder} runs on another host, or was killed and what "
                f"it left still runs here; `lsof {lock.path}` names it: end it first"
            )
        time.sleep(_LOOK_S)


def _has_open(pid: str, path: Path) -> bool:
    """Whether the process has the file open: one that was killed lets go before it is reaped."""
    with suppress(ValueError, psutil.Error):  # no number, another user's, or it has just ended
        files = psutil.Process(int(pid)).open_files()
        return any(file.path == str(path.resolve()) for file in files)
    return False
