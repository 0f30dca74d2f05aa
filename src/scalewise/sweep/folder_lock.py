"""A sweep's folder belongs to the one process that runs a sweep in it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from scalewise.errors import ConfigError
from scalewise.gpu.election import FileLock
from scalewise.records import SweepFolder

_ASK_S = 0.2
"""Whoever asks for the status of a sweep has its lock for far less than this."""


class SweepBusy(ConfigError):  # noqa: N818 - it says what is wrong
    """Another process is running a sweep in this folder."""


@contextmanager
def held(folder: SweepFolder) -> Iterator[None]:
    """Make the folder, and keep every other sweep out of it.

    Raises :class:`SweepBusy` where one runs in it already, :class:`ConfigError` where it cannot be
    made.
    """
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"hydra.sweep.dir: {folder.path} cannot be made: {error}") from error
    lock = FileLock(folder.lock_path)
    if not _acquired(lock):
        raise SweepBusy(
            f"sweep.resume: another process is running a sweep in {folder.path}; "
            "wait for it or choose another folder"
        )
    try:
        yield
    finally:
        lock.release()


def _acquired(lock: FileLock) -> bool:
    """Whether the lock is ours, after waiting for those who only ask whether somebody has it."""
    deadline = time.monotonic() + _ASK_S
    while not lock.try_acquire():
        if time.monotonic() > deadline:
            return False
        time.sleep(_ASK_S / 10)
    return True
