"""Who shares this host: one locked file for each running cell, of any sweep of this user.

The lock dies with its holder, so a cell that was killed is no neighbour of anybody.
"""

from __future__ import annotations

import json
import uuid

from scalewise.gpu.election import FileLock, runtime_folder


class Tenant:
    """One cell's place among the cells of this host.

    Args:
        sweep: the sweep's folder, which tells cells of the same name apart.
        cell: the cell's name.
    """

    def __init__(self, sweep: str, cell: str) -> None:
        self._own = [sweep, cell]
        self._folder = runtime_folder() / "cells"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._lock = self._claim(json.dumps(self._own))
        self._seen: dict[str, None] = {}
        self.look()

    def _claim(self, text: str) -> FileLock:
        while True:
            lock = FileLock(self._folder / uuid.uuid4().hex)
            if lock.try_acquire() and lock.path.exists():
                lock.path.write_text(text, encoding="utf-8")
                return lock
            # Between creation and locking, another cell took it for a dead one's.
            lock.release()

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
                sweep, cell = json.loads(path.read_text(encoding="utf-8"))
            except (FileNotFoundError, ValueError):
                continue  # just gone, or not yet written: the next look sees it
            finally:
                probe.release()
            # A cell on several hosts may have two supervisors here, as in a test.
            if [sweep, cell] != self._own:
                self._seen.setdefault(cell if sweep == self._own[0] else f"{sweep}/{cell}")

    def leave(self) -> None:
        self._lock.path.unlink(missing_ok=True)
        self._lock.release()
