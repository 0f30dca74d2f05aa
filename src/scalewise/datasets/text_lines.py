"""Files with a document a line, read so that a bad line is told by its file and number."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scalewise.datasets.errors import DatasetError

MEND = "mend it and give a new --out"
_BOM = b"\xef\xbb\xbf"

Parse = Callable[[bytes], str | None]
"""The document of a line; None for a line that holds none. Raises ValueError."""


class Skipped:
    """Documents that could not be read, if the user said that they may be passed over."""

    def __init__(self, allowed: bool) -> None:
        self.allowed = allowed
        self.count = 0
        self.first: str | None = None

    def note(self, problem: str, remedy: str) -> None:
        """Count it, or raise :class:`DatasetError` with what to do."""
        if not self.allowed:
            raise DatasetError(
                f"{problem}; {remedy}, or pass over such documents with --skip-bad-documents"
            )
        self.count += 1
        self.first = self.first or problem


class LineStream:
    """Documents of text files, one after the other, from where it was told to go on.

    Args:
        files: in their order.
        parse: of one line, without its end.
        source: what the documents are, for the records.
        skip_bad: pass over what is no document instead of raising.
    """

    def __init__(
        self, files: Sequence[Path], parse: Parse, source: str, skip_bad: bool = False
    ) -> None:
        self._files = tuple(files)
        self._parse = parse
        self._file = self._line = self._byte = 0
        self.source = source
        self.skipped = Skipped(skip_bad)

    def state(self) -> dict[str, Any]:
        """Where it stands, after the last line: what :meth:`resume` takes."""
        return {"file": self._file, "line": self._line, "byte": self._byte}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on after the line at which ``state`` was taken. Raises DatasetError."""
        try:
            place = [state[key] for key in ("file", "line", "byte")]
        except KeyError as error:
            raise _other_state(error) from None
        if not all(type(n) is int and n >= 0 for n in place) or place[0] >= len(self._files):
            raise _other_state(f"found {place}")
        self._file, self._line, self._byte = place

    def __iter__(self) -> Iterator[str]:
        while self._file < len(self._files):
            path = self._files[self._file]
            try:
                with path.open("rb") as file:
                    file.seek(self._byte)
                    for line in file:
                        self._line += 1
                        self._byte += len(line)
                        text = self._read(path, line)
                        if text is not None:
                            yield text
            except OSError as error:
                raise DatasetError(f"{path}: cannot be read: {error.strerror}") from error
            if self._file + 1 == len(self._files):
                return  # its state stays at the end: more was never there
            self._file, self._line, self._byte = self._file + 1, 0, 0

    def _read(self, path: Path, line: bytes) -> str | None:
        if self._line == 1:
            line = line.removeprefix(_BOM)
        try:
            return self._parse(line.rstrip(b"\r\n"))
        except ValueError as error:
            self.skipped.note(f"{_shown(path)}:{self._line}: {error}", MEND)
            return None


def plain_line(line: bytes) -> str:
    """A line of text as it is. Raises ValueError for other encodings than UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"found byte 0x{line[error.start]:02x} in column {error.start + 1}; allowed: UTF-8"
        ) from None


def json_line(column: str) -> Parse:
    """A line of JSON whose key ``column`` holds the text. Blank lines hold nothing."""

    def parse(line: bytes) -> str | None:
        text = plain_line(line)
        if not text.strip():
            return None
        try:
            row = json.loads(text)
        except RecursionError:
            raise ValueError("found JSON nested too deeply; allowed: one JSON object") from None
        except json.JSONDecodeError as error:
            raise ValueError(
                f"found no JSON ({error.msg}, column {error.colno}); allowed: one JSON object"
            ) from None
        if not isinstance(row, dict):
            raise ValueError(f"found a JSON {type(row).__name__}; allowed: one JSON object")
        return checked_text(row, column)

    return parse


def checked_text(row: Mapping[str, Any], column: str) -> str:
    """The text of a document. Raises ValueError where it has none that can be written as UTF-8."""
    text = row.get(column)
    if not isinstance(text, str):
        found = "no column" if column not in row else f"{type(text).__name__} in column"
        raise ValueError(
            f"found {found} {column!r}; allowed: text, and the document has "
            f"{', '.join(map(str, row)) or 'no column at all'} (--column)"
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"found half a surrogate pair in {column!r}; allowed: Unicode") from None
    return text


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _other_state(problem: object) -> DatasetError:
    return DatasetError(
        f"--out: the place at which to go on cannot be read from its index ({problem}): another "
        "version wrote it, or it is damaged; give a new folder"
    )
