"""A JSON array on disk that grows, and that is whole at every moment, after kill -9 too.

A write to a file may be cut off at a page boundary by a SIGKILL, and rewriting everything for each
entry costs the square of its number. So there are two copies under hidden names: an entry is
appended to the one nobody sees, which then takes the public name in one atomic step. A reader who
opened the public file has until the entry after next to read it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from scalewise.records.files import read_record

_EMPTY = b"[\n]\n"
_END = b"\n]\n"


class JsonArrayFile:
    """Appends entries to a JSON array; an array that is already there is continued."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError where ``path`` holds something else than a JSON array, or OSError."""
        self.path = path
        self._copies = [path.with_name(f".{path.name}.{suffix}") for suffix in "ab"]
        self._pending: list[bytes] = []
        """Entries that the hidden copy lacks: what was appended to the other one last."""
        path.parent.mkdir(parents=True, exist_ok=True)
        content = self._existing()
        for copy in self._copies:
            copy.write_bytes(content)
        self._publish(self._copies[0])
        self._hidden = 1

    def append(self, entry: Any) -> None:
        """Raises OSError; the public file then stays as it was."""
        text = json.dumps(entry, allow_nan=False, ensure_ascii=False).encode()
        hidden = self._copies[self._hidden]
        _extend(hidden, [*self._pending, text])
        self._publish(hidden)
        self._pending = [text]
        self._hidden = 1 - self._hidden

    def close(self) -> None:
        """Leave the public file alone behind."""
        for copy in self._copies:
            copy.unlink(missing_ok=True)

    def _existing(self) -> bytes:
        try:
            content = read_record(self.path)
        except FileNotFoundError:
            return _EMPTY
        try:
            entries = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.path}: not JSON ({error}); name another file") from None
        if not isinstance(entries, list):
            raise ValueError(f"{self.path}: not a JSON array; name another file")
        if not entries:
            return _EMPTY
        return content.rstrip().removesuffix(b"]").rstrip() + _END

    def _publish(self, copy: Path) -> None:
        name = self.path.with_name(f".{self.path.name}.new")
        name.unlink(missing_ok=True)
        os.link(copy, name)
        name.replace(self.path)


def _extend(path: Path, entries: list[bytes]) -> None:
    """Put entries before the closing bracket."""
    with path.open("r+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        empty = size == len(_EMPTY)
        file.seek(size - len(_END))
        separator = b"\n" if empty else b",\n"
        try:
            unwritten = memoryview(separator + b",\n".join(entries) + _END)
            while unwritten:
                unwritten = unwritten[file.write(unwritten) :]
        except OSError:
            # A full disk: what stood there before fits again, so that later entries may follow.
            file.truncate(size - len(_END))
            file.seek(size - len(_END))
            file.write(_END)
            raise
