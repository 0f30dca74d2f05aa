"""How records are written and read: whole ones as JSON, and series that grow while they are read.

A record is replaced in one step, so that a reader sees all of it or none. A series is appended to:
its last unit may be torn off at any byte. A parser keeps that end in ``rest`` until it is whole.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import threading
from collections.abc import Callable, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Generic, Protocol, TextIO, TypeVar

from pydantic import Field

from scalewise.host import escaped
from scalewise.records.validation import MOST_FLOAT, DataError, build, shown, to_plain

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
SCHEMA_VERSION = 1
Rank = Annotated[int, Field(ge=0, lt=2**16)]
WorldSize = Annotated[int, Field(ge=1, le=2**16)]
UnixTime = Annotated[float, Field(ge=0, le=1e11)]
FileName = Annotated[str, Field(max_length=255, pattern=r"^[^/\x00]*[^/\x00.][^/\x00]*$")]
"""One that leads nowhere else."""


class RecordError(Exception):
    """A record that is absent, torn, or of a version this code does not read: one line."""

    def __str__(self) -> str:
        return escaped(super().__str__())


class AbsentRecordError(RecordError):
    """A record that is not there, or no longer."""


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


def is_version(found: object, known: int) -> bool:
    """Whether a record is of the version that this code reads: neither true nor 1.0 is one."""
    return type(found) is int and found == known


_DEEPEST: Final = 6
"""Folders around the deepest file of a sweep: it, a cell and ``earlier/1/attempts/1.logs``."""


def refuse_link(path: Path) -> None:
    """Raises OSError where a link leads to ``path`` from inside a sweep or a cell.

    Whoever made the sweep's folder could have other files read, or written over. The sweep's own
    folder may be a link: that one is the reader's.
    """
    folders = path.parents[:_DEEPEST]
    for depth, folder in enumerate(folders):
        if folder.is_symlink() and any(
            os.path.lexists(above / name)
            for above in folders[depth + 1 :]
            for name in ("sweep.json", "config.yaml")
        ):
            said = "found a link; allowed: a folder of the sweep's"
            raise OSError(errno.ELOOP, said, str(folder))


def open_plain(path: Path) -> BufferedReader:
    """Open for reading what lies in a sweep: a plain file, to which no link leads.

    Raises OSError that names ``path``, also for a pipe or a device.
    """
    refuse_link(path)
    try:
        descriptor = os.open(path, os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            error.strerror = "found a link; allowed: a plain file"
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "found no plain file; allowed: one", str(path))
    return os.fdopen(descriptor, "rb")


def read_plain(path: Path) -> bytes:
    """All of what :func:`open_plain` opens."""
    with open_plain(path) as file:
        return file.read()


def write_atomically(path: Path, data: bytes, written_ns: int | None = None) -> None:
    """Replace ``path`` by ``data``: a crash leaves the old content or the new, never a mixture.

    A reader beside sees one of them, and what was written outlives a power cut. A link is replaced,
    not followed. ``written_ns`` is the time that the file is to bear, where that is not now. Raises
    OSError that names ``path``, as that of a full disk does not do by itself.
    """
    refuse_link(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two threads may write the same record at once, each its own file until it takes the name.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            if written_ns is not None:
                os.utime(file.fileno(), ns=(written_ns, written_ns))
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync(path.parent)
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Have the names in ``folder`` on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that does not know it
            raise
    finally:
        os.close(descriptor)


def save_json(path: Path, record: object, written_ns: int | None = None) -> None:
    """As :func:`write_atomically`, a dataclass as JSON with the schema version in front."""
    plain = {"schema_version": SCHEMA_VERSION, **to_plain(record)}
    text = json.dumps(plain, indent=2, allow_nan=False, ensure_ascii=False)
    write_atomically(path, text.encode(errors="backslashreplace") + b"\n", written_ns)


def reason(error: Exception) -> str:
    """The error without the file's name, which stands before it."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def load_json(path: Path, cls: type[T], read: Callable[[Path], bytes] = read_plain) -> T:
    """What :func:`save_json` wrote; ``read`` opens it. Raises RecordError naming the file."""
    try:
        plain = parse_json(read(path).decode())
    except FileNotFoundError:
        raise AbsentRecordError(f"{path}: no such record") from None
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read as JSON: {reason(error)}") from error
    if not isinstance(plain, dict):
        raise RecordError(f"{path}: found {type(plain).__name__}; a JSON object was expected")
    # What a person typed has none: it is read as today's, and its keys are checked.
    version = plain.pop("schema_version", SCHEMA_VERSION)
    if not is_version(version, SCHEMA_VERSION):
        raise RecordError(
            f"{path}: schema version {shown(version)}; this scalewise reads {SCHEMA_VERSION}"
        )
    try:
        return build(cls, plain)
    except DataError as error:
        raise RecordError(f"{path}: {error}") from error


def load_optional(path: Path, cls: type[T]) -> T | None:
    """As :func:`load_json`; None where there is no such record."""
    try:
        return load_json(path, cls)
    except AbsentRecordError:
        return None


class FiledRecord(Protocol):
    """A record that lies in a folder of its own under one name."""

    FILE: ClassVar[str]


R = TypeVar("R", bound=FiledRecord)


def save_record(folder: Path, record: FiledRecord) -> Path:
    """Write the record into the folder of its cell or sweep, and say where."""
    path = folder / record.FILE
    save_json(path, record)
    return path


def find_record(folder: Path, cls: type[R]) -> R | None:
    """The record of this class in a folder; None where none is. Raises :class:`RecordError`."""
    return load_optional(folder / cls.FILE, cls)


def load_or_none(load: Callable[..., T], *arguments: object) -> T | None:
    """What ``load(*arguments)`` reads; None for a record that is absent or cannot be read."""
    try:
        return load(*arguments)
    except RecordError:
        return None


def finite_or_none(value: float | None) -> float | None:
    """JSON has no NaN and no infinity: a loss that diverged, or is about to, is None."""
    return value if value is not None and abs(value) <= MOST_FLOAT else None


class LineWriter:
    """Writes a file of JSON lines, begun anew with the first line and flushed after each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None

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


class Parser(Protocol[T_co]):
    """Takes the bytes of a series in order, in pieces of any size."""

    rest: bytes
    """The end that is not whole yet."""

    def parse(self, data: bytes) -> T_co:
        """The units that are whole by now and were not returned before.

        Raises ValueError for bytes that no series holds; nothing can be parsed after it.
        """


class LineParser(Generic[T]):
    """Parses JSON objects, one a line, into what ``make`` returns of each."""

    def __init__(self, make: Callable[[dict[str, Any]], T]) -> None:
        self._make = make
        self.rest = b""
        self.count = 0
        """Lines parsed so far."""

    def parse(self, data: bytes) -> list[T]:
        *whole, self.rest = (self.rest + data).split(b"\n")
        return [self._made(line) for line in whole]

    def _made(self, line: bytes) -> T:
        self.count += 1
        try:
            plain = parse_json(line)
        except ValueError as error:
            raise ValueError(f"line {self.count}: not JSON: {error}") from error
        if not isinstance(plain, dict):
            raise ValueError(f"line {self.count}: found no JSON object")
        try:
            return self._make(plain)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"line {self.count}: {error}") from error


def parse_series(path: Path, parser: Parser[T]) -> T:
    """All of a series but a torn end, which stays in the parser. Raises :class:`RecordError`."""
    try:
        return parser.parse(read_plain(path))
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {reason(error)}") from error
    except ValueError as error:
        raise RecordError(f"{path}: {error}") from error


_CHUNK_BYTES: Final = 4_194_304
_FINGERPRINT_BYTES: Final = 512


class Tail(Generic[T]):
    """Follows a series that grows."""

    def __init__(self, path: Path, parser: Parser[T]) -> None:
        self.path = path
        self._parser = parser
        self._position = 0
        self._head = b""

    def read(self) -> T:
        """The units added since the last call, up to a few MiB.

        Raises :class:`RecordError`, also for a file that was begun anew (a retry) or removed.
        """
        try:
            return self._parser.parse(self._new_bytes())
        except ValueError as error:
            raise RecordError(f"{self.path}: {error}") from error

    def _new_bytes(self) -> bytes:
        try:
            with open_plain(self.path) as file:
                head = file.read(_FINGERPRINT_BYTES)
                if not head.startswith(self._head):
                    raise RecordError(f"{self.path} was begun anew while it was read")
                self._head = head
                file.seek(self._position)
                data = file.read(_CHUNK_BYTES)
        except FileNotFoundError:
            if self._position:
                raise RecordError(f"{self.path} was removed while it was read") from None
            return b""
        except OSError as error:
            raise RecordError(f"{self.path}: cannot be read: {reason(error)}") from error
        self._position += len(data)
        return data
