"""Writing a file so that a reader sees all of it or none of it."""

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path
from typing import Any, TypeVar

from scalewise.typed import DataError, build, to_plain

T = TypeVar("T")

SCHEMA_VERSION = 1


class RecordError(Exception):
    """A record that is absent, torn, or of a version this code does not read."""


def parse_json(text: str | bytes) -> Any:
    """JSON as records are written: a number that is not finite is damage, and a ValueError."""
    return json.loads(text, parse_constant=_finite, parse_float=_finite)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"found {text}; allowed: finite numbers, and null for what is not known")
    return number


def write_atomically(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``: a crash leaves the old content or the new, never a mixture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two threads may write the same record at once, each its own file until it takes the name.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
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
        plain = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecordError(f"{path}: no such record") from None
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(plain, dict):
        raise RecordError(f"{path}: found {type(plain).__name__}; a JSON object was expected")
    version = plain.pop("schema_version", None)
    if version != SCHEMA_VERSION:
        raise RecordError(
            f"{path}: schema version {version!r}; this scalewise reads {SCHEMA_VERSION}"
        )
    try:
        return build(cls, plain)
    except DataError as error:
        raise RecordError(f"{path}: {error}") from error
