"""One sampler a host: elected by a file lock, told by its peers what they want sampled.

The kernel drops a lock with its holder, however the holder dies, so there is nothing to clean up
and no stale pid to misread. Everything lies in a folder that only this user can enter.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import tempfile
import uuid
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def runtime_folder() -> Path:
    """This user's folder for what lives as long as a process does; created if need be.

    ``$SCALEWISE_RUNTIME_DIR``, else ``$XDG_RUNTIME_DIR/scalewise``, else
    ``/tmp/scalewise-<uid>``. Raises OSError, also where the folder belongs to someone else: with
    its name and what to do.
    """
    own = os.environ.get("SCALEWISE_RUNTIME_DIR")
    session = os.environ.get("XDG_RUNTIME_DIR")
    if own:
        folder = Path(own)
    elif session and Path(session).is_dir():
        folder = Path(session) / "scalewise"
    else:
        folder = Path(tempfile.gettempdir()) / f"scalewise-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder.lstat()
    except FileExistsError:
        raise _unusable(folder, errno.ENOTDIR, "it is no folder") from None
    except OSError as error:
        raise _unusable(folder, error.errno, f"it cannot be made ({error.strerror})") from None
    if not stat.S_ISDIR(owner.st_mode) or owner.st_uid != os.getuid():
        raise _unusable(folder, errno.EACCES, "it belongs to another user")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _unusable(folder, errno.EACCES, "it cannot be written")
    return folder


def _unusable(folder: Path, number: int | None, why: str) -> OSError:
    """``OSError`` itself chooses the class that belongs to the error number."""
    said = f"{why}; locks of this host lie there: set SCALEWISE_RUNTIME_DIR to a folder of yours"
    return OSError(number or errno.EIO, said, str(folder))


class FileLock:
    """An exclusive lock on a file, held until released or until this process ends.

    Forks of this process do not hold it, and what it executes does only where
    :attr:`descriptors` are handed on: then the lock is free when the last of all has let go.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        _LOCKS.add(self)

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What holds the lock: a process that inherits it holds the lock, too. None while free."""
        return () if self._descriptor is None else (self._descriptor,)

    def try_acquire(self) -> bool:
        """Take the lock if nobody holds it. Raises OSError if the file cannot be opened."""
        if self._descriptor is not None:
            return True
        # No link: where others can write the folder, it may lead to any file of this user.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.path, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_LOCKS: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _drop_inherited_locks() -> None:
    # A forked loader worker that outlives a killed rank would keep its lock alive.
    for lock in list(_LOCKS):
        lock.release()


os.register_at_fork(after_in_child=_drop_inherited_locks)


@dataclass(frozen=True)
class Wish:
    """What one participant wants sampled."""

    interval_s: float
    uuids: tuple[str, ...]


class WishBoard:
    """Wishes of all living participants: a locked file each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "wishes"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._own: FileLock | None = None

    def post(self, wish: Wish) -> None:
        """Say what this participant wants, until :meth:`withdraw` or its death."""
        text = json.dumps({"interval_s": wish.interval_s, "uuids": wish.uuids})
        while True:
            lock = FileLock(self._folder / uuid.uuid4().hex)
            if lock.try_acquire() and lock.path.exists():
                break
            # Between creation and locking, the elected sampler took it for a dead one's.
            lock.release()
        lock.path.write_text(text, encoding="ascii")
        self._own = lock

    def withdraw(self) -> None:
        if self._own is not None:
            self._own.path.unlink(missing_ok=True)
            self._own.release()
            self._own = None

    def changed_at_ns(self) -> int:
        """Changes when a wish is posted or withdrawn."""
        return self._folder.stat().st_mtime_ns

    def read(self) -> list[Wish]:
        """Wishes of participants that live; those of the dead are removed."""
        return list(self._living(self._folder.iterdir()))

    def _living(self, paths: Iterable[Path]) -> Iterable[Wish]:
        for path in paths:
            own = self._own is not None and path == self._own.path
            if not own and self._is_abandoned(path):
                path.unlink(missing_ok=True)
                continue
            try:
                plain: Any = json.loads(path.read_text(encoding="ascii"))
            except (FileNotFoundError, ValueError):
                continue  # withdrawn, or not yet written: the next reading will see it
            yield Wish(float(plain["interval_s"]), tuple(plain["uuids"]))

    @staticmethod
    def _is_abandoned(path: Path) -> bool:
        probe = FileLock(path)
        free = probe.try_acquire()
        probe.release()
        return free
