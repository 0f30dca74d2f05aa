"""The lock that keeps a sweep's folder to one sweep at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
    if not lock.try_acquire(_own_name()):
        _wait_for(lock, folder.path)
    try:
        yield
    finally:
        lock.release()


def _own_name() -> str:
    """What the lock holds of the process that took it last, dead or alive."""
    return f"{os.getpid()}\n"


def _wait_for(lock: FileLock, folder: Path) -> None:
    """Take a lock that others have, once they have ended. Raises :class:`SweepBusy`."""
    begun = time.monotonic()
    while True:
        # Looked up before the lock is tried: none of these can have let go unnoticed.
        pids = _processes_with(lock.path)
        if lock.try_acquire(_own_name()):
            return
        waited_s = time.monotonic() - begun
        # Where nobody is seen, the sweep runs on another host or for another user.
        runs = not pids or lock.holder().strip() in map(str, pids)
        if runs and waited_s > _ASK_S:
            raise SweepBusy(
                f"sweep.resume: another process is running a sweep in {folder}; "
                "wait for it or choose another folder"
            )
        if waited_s > _RANKS_END_S:
            raise SweepBusy(
                f"sweep.resume: the sweep in {folder} was killed, and what it left still runs "
                f"(process ids: {', '.join(map(str, pids))}); end it first"
            )
        time.sleep(_LOOK_S)


def _processes_with(path: Path) -> list[int]:
    """The processes of this host, as far as we may look, that have a file open."""
    import psutil  # only a folder that somebody has asks

    wanted, pids = str(path.resolve()), []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # another user's, or it has just ended
            if any(file.path == wanted for file in process.open_files()):
                pids.append(process.pid)
    return sorted(pids)
