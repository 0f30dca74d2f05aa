"""Copies a cell's folder from a host that does not share it, a little at a time.

What grows at its end (step records, metrics, device series, logs) is sent from where the last copy
ended; everything else is small and sent whole whenever it has changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from scalewise.records.files import write_atomically

_GROWING = frozenset({"steps", "metrics", "gpu", "logs"})
_LAST = "result.json"
"""A cell is done when this can be read: it follows all others."""


@dataclass(frozen=True)
class Change:
    """What has happened to one file."""

    path: str
    """Within the folder."""
    data: bytes | None
    """None where the file is gone."""
    offset: int = 0
    """Of ``data`` in the file; 0 replaces all of it."""


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder: what a first copy needs."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in _files(folder)}


class FolderWatch:
    """Tells what has changed in a folder since it was last asked."""

    def __init__(self, folder: Path, known: Iterable[str] = ()) -> None:
        self._folder = folder
        self._seen: dict[str, tuple[int, int]] = {}
        """Size and time stamp (ns) of every file as it was last sent."""
        for path in known:
            stat = (folder / path).stat()
            self._seen[path] = (stat.st_size, stat.st_mtime_ns)

    def changes(self) -> list[Change]:
        """In the order in which they are to be applied."""
        found: list[Change] = []
        present: set[str] = set()
        for file in sorted(_files(self._folder), key=lambda f: (f.name == _LAST, f)):
            path = str(file.relative_to(self._folder))
            try:
                change = self._change(path, file)
            except FileNotFoundError:
                continue  # replaced or removed while we looked: the next look sees it
            present.add(path)
            if change is not None:
                found.append(change)
        gone = [path for path in self._seen if path not in present]
        for path in gone:
            del self._seen[path]
        return [*(Change(path, None) for path in gone), *found]

    def _change(self, path: str, file: Path) -> Change | None:
        stat = file.stat()
        now, before = (stat.st_size, stat.st_mtime_ns), self._seen.get(path)
        if now == before:
            return None
        grows = path.partition(os.sep)[0] in _GROWING
        offset = before[0] if before is not None and grows and now[0] >= before[0] else 0
        with file.open("rb") as opened:
            opened.seek(offset)
            data = opened.read(now[0] - offset)
        self._seen[path] = (offset + len(data), now[1])
        return Change(path, data, offset)


def apply(folder: Path, changes: Iterable[Change]) -> None:
    """Make ``folder`` like the one that ``changes`` come from."""
    for change in changes:
        path = folder / change.path
        if change.data is None:
            path.unlink(missing_ok=True)
        elif change.offset == 0:
            write_atomically(path, change.data)
        else:
            with path.open("r+b") as file:
                file.seek(change.offset)
                file.write(change.data)


def unpack(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write what :func:`contents` has read."""
    apply(folder, [Change(path, data) for path, data in files.items()])


def _files(folder: Path) -> list[Path]:
    # Temporary files of atomic writes begin with a dot.
    return [p for p in folder.rglob("*") if p.is_file() and not p.name.startswith(".")]
