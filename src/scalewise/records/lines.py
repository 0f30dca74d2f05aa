"""Files of JSON lines: appended and flushed; a last line without its newline was cut off."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from scalewise.records.files import RecordError, open_record, parse_json, read_record


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
