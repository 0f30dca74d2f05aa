"""Locks of processes of one user on a host.

The kernel drops a lock with its holder, however the holder dies, so there is nothing to clean up
and no stale pid to misread. Everything lies in a folder that only this user can enter.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
import uuid
import weakref
from contextlib import suppress
from pathlib import Path


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
    why, number = None, errno.EACCES
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            why = "it is no folder of this user"
        elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            why = f"it can be written by others (mode {stat.S_IMODE(found.st_mode):o}, not 700)"
        elif not os.access(folder, os.W_OK | os.X_OK):
            why = "it cannot be written"
    except OSError as error:
        why, number = f"it cannot be made ({error.strerror})", error.errno or errno.EIO
    if why is None:
        return folder
    said = f"{why}; locks of this host lie there: set SCALEWISE_RUNTIME_DIR to a folder of yours"
    raise OSError(number, said, str(folder))


class FileLock:
    """An exclusive lock on a file, held until released or until this process ends.

    Forks of this process do not hold it, and what it executes does only where
    :attr:`descriptors` are handed on: then the lock is free when the last of all has let go.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptors: tuple[int, ...] = ()
        """Of the lock: a process that inherits one holds it, too. Empty while it is free."""
        _LOCKS.add(self)

    def holder(self) -> str:
        """What its holder has written into the file of a lock that another has; may be empty."""
        return self.path.read_text(encoding="utf-8", errors="replace")

    def try_acquire(self, holder: str = "") -> bool:
        """Take the lock if nobody holds it, and say there who does, for those who wait.

        Raises OSError if the file cannot be opened.
        """
        if self.descriptors:
            return True
        # No link: where others can write the folder, it may lead to any file of this user.
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self.descriptors = (descriptor,)
        if holder:
            with suppress(OSError):  # a full disk: who waits is told less
                os.truncate(descriptor, 0)
                os.pwrite(descriptor, holder.encode(errors="replace"), 0)
        return True

    def release(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = ()


_LOCKS: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _drop_inherited_locks() -> None:
    # A forked loader worker that outlives a killed rank would keep its lock alive.
    for lock in list(_LOCKS):
        lock.release()


os.register_at_fork(after_in_child=_drop_inherited_locks)


class Colocation:
    """One cell's place among the cells of this host: a locked file for each, of any sweep.

    The lock dies with its holder, so a cell that was killed is no neighbour of anybody. The sweep's
    folder tells cells of the same name apart.
    """

    def __init__(self, sweep: str, cell: str) -> None:
        self._sweep, self._cell = sweep, cell
        self._folder = runtime_folder() / "cells"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        while True:
            self._lock = FileLock(self._folder / uuid.uuid4().hex)
            # Between creation and locking, somebody may have taken it for a dead one's.
            if self._lock.try_acquire() and self._lock.path.exists():
                break
            self._lock.release()
        self._lock.path.write_text(f"{sweep}\0{cell}", encoding="utf-8")
        self._seen: dict[str, None] = {}
        self.look()

    @property
    def neighbours(self) -> tuple[str, ...]:
        """Everyone seen so far: a cell's name, with its sweep's folder where that is another."""
        return tuple(self._seen)

    def look(self) -> None:
        """Note who is there now; files of the dead are removed."""
        for path in sorted(self._folder.iterdir()):
            if path == self._lock.path:
                continue
            probe = FileLock(path)
            try:
                if probe.try_acquire():
                    path.unlink(missing_ok=True)
                    continue
                sweep, _, cell = path.read_text(encoding="utf-8").partition("\0")
            except (FileNotFoundError, UnicodeDecodeError):
                continue  # just gone
            finally:
                probe.release()
            # Without a name it is not yet written: the next look sees it. A cell on several hosts
            # may have two supervisors here, as in a test.
            if cell and (sweep, cell) != (self._sweep, self._cell):
                self._seen.setdefault(cell if sweep == self._sweep else f"{sweep}/{cell}")

    def leave(self) -> None:
        self._lock.path.unlink(missing_ok=True)
        self._lock.release()
