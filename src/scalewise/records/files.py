"""Writing a file so that a reader sees all of it or none of it, and reading it without waiting."""

from __future__ import annotations

import errno
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, TextIO, TypeVar

from pydantic import Field

from scalewise.host import escaped
from scalewise.records.validation import DataError, build, shown, to_plain

T = TypeVar("T")


SCHEMA_VERSION = 1


MOST_BYTES = 2**28
"""Of a record that is read whole: ten times what a plan of 100,000 cells takes."""


Rank = Annotated[int, Field(ge=0, lt=2**16)]


WorldSize = Annotated[int, Field(ge=1, le=2**16)]


UnixTime = Annotated[float, Field(ge=0, le=10**11)]


FileName = Annotated[str, Field(max_length=255, pattern=r"^[^/\x00]*[^/\x00.][^/\x00]*$")]
"""One that leads nowhere else."""


class RecordError(Exception):
    """A record that is absent, torn, or of a version this code does not read: one line."""

    def __str__(self) -> str:
        return escaped(super().__str__())


class NewerRecordError(RecordError):
    """A record that a newer scalewise wrote."""


def open_record(path: Path) -> BufferedReader:
    """Open a record for reading, at once. Raises OSError, also for what is no regular file.

    A pipe, to open which is to wait for a writer, could otherwise hold up whoever reads a folder.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "it is no regular file; remove it", str(path))
    return path.open("rb")


def read_record(path: Path) -> bytes:
    """All of a record; raises as :func:`open_record` does, and for one that is too large."""
    with open_record(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            raise OSError(f"found {size:,} bytes; allowed: up to {MOST_BYTES:,}; remove it")
        return file.read()


def parse_json(text: str | bytes) -> Any:
    """JSON as records are written. Raises ValueError, also for a number that is not finite."""
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply for a record") from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"found {text}; allowed: finite numbers, and null for what is not known")
    return number


def is_version(found: object, *known: int) -> bool:
    """Whether a record is of a version that this code reads: neither true nor 1.0 is one."""
    return type(found) is int and found in known


def write_atomically(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``: a crash leaves the old content or the new, never a mixture.

    Raises OSError that names ``path``, as that of a full disk does not do by itself.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two threads may write the same record at once, each its own file until it takes the name.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def save_json(path: Path, record: object) -> None:
    """Write a dataclass as JSON, atomically, with the schema version in front."""
    plain = {"schema_version": SCHEMA_VERSION, **to_plain(record)}
    text = json.dumps(plain, indent=2, allow_nan=False, ensure_ascii=False)
    write_atomically(path, text.encode(errors="backslashreplace") + b"\n")


def load_json(path: Path, cls: type[T]) -> T:
    """Read what :func:`save_json` wrote. Raises :class:`RecordError` naming the file."""
    try:
        plain = parse_json(read_record(path).decode())
    except FileNotFoundError:
        raise RecordError(f"{path}: no such record") from None
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(plain, dict):
        raise RecordError(f"{path}: found {type(plain).__name__}; a JSON object was expected")
    version = plain.pop("schema_version", None)
    if not is_version(version, SCHEMA_VERSION):
        newer = type(version) is int and version > SCHEMA_VERSION
        raise (NewerRecordError if newer else RecordError)(
            f"{path}: schema version {shown(version)}; this scalewise reads {SCHEMA_VERSION}"
        )
    try:
        return build(cls, plain)
    except DataError as error:
        raise RecordError(f"{path}: {error}") from error


# Files of JSON lines: appended and flushed; a last line without its newline was cut off.


def finite_or_none(value: float | None) -> float | None:
    """JSON has no NaN and no infinity: a diverged loss is recorded as None."""
    return value if value is not None and math.isfinite(value) else None


@dataclass
class Lines:
    """An append-only file of JSON lines, flushed after every line."""

    path: Path
    rows: int = 0
    _file: TextIO | None = field(default=None, repr=False)

    def write(self, plain: Mapping[str, Any]) -> None:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("w", encoding="utf-8")
        self._file.write(json.dumps(plain, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def whole_lines(path: Path, problems: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each whole line with its number from 1; a torn last one goes to ``problems``."""
    try:
        data = read_record(path)
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error
    lines = data.split(b"\n")
    torn = lines.pop()
    for number, line in enumerate(lines, start=1):
        try:
            plain = parse_json(line)
        except ValueError as error:
            raise RecordError(f"{path}, line {number}: not JSON: {error}") from error
        if not isinstance(plain, dict):
            raise RecordError(f"{path}, line {number}: found no JSON object")
        yield number, plain
    if torn:
        problems.append(f"a torn last line of {len(torn)} bytes was dropped")


def follow_lines(path: Path, stop: Callable[[], bool], poll_s: float = 0.5) -> Iterator[Any]:
    """Parsed lines of a growing file, until ``stop()`` is true and the end is reached."""
    position = 0
    while True:
        stopping = stop()
        if path.exists():
            with open_record(path) as file:
                file.seek(position)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    position += len(line)
                    yield parse_json(line)
        if stopping:
            return
        time.sleep(poll_s)


# Reading record files while they are being written, without ever seeing half a row.


_CHUNK_BYTES: Final = 4 * 2**20


_FINGERPRINT_BYTES: Final = 512


class ReplacedError(Exception):
    """The file was begun anew (a retry) before its earlier rows had all been read."""


class Tail:
    """Whole units of bytes from a growing file; a torn last one stays until it is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0
        self._head = b""

    def _read(self) -> bytes:
        """Up to a few MiB that were not read before. Raises RecordError, :class:`ReplacedError`."""
        try:
            with open_record(self.path) as file:
                self._check_head(file)
                file.seek(self._position)
                return file.read(_CHUNK_BYTES)
        except FileNotFoundError:
            if self._position:
                raise ReplacedError(f"{self.path.name} was removed while it was mirrored") from None
            return b""
        except OSError as error:
            raise RecordError(f"{self.path}: cannot be read: {error}") from error

    def _check_head(self, file: BinaryIO) -> None:
        head = file.read(_FINGERPRINT_BYTES)
        if not head.startswith(self._head):
            raise ReplacedError(f"{self.path.name} was begun anew while it was mirrored")
        self._head = head


class LineTail(Tail):
    """Parsed lines of a JSON-lines file."""

    def read(self) -> list[dict[str, Any]]:
        """Whole lines added since the last call. Raises RecordError, :class:`ReplacedError`."""
        data = self._read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        try:
            return [parse_json(line) for line in whole.splitlines()]
        except ValueError as error:
            raise RecordError(f"{self.path}: not JSON: {error}") from error
