"""Reading record files while they are being written, without ever seeing half a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from scalewise.records import RecordError
from scalewise.records.files import open_record, parse_json
from scalewise.records.steps import StepParser

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


class StepTail(Tail):
    """Rows of ``STEP_DTYPE`` from a rank's step file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._parser = StepParser()

    @property
    def epoch_offset_ns(self) -> int | None:
        """Add to ``start_ns`` for Unix time; None until the header was read."""
        return self._parser.epoch_offset_ns

    def read(self) -> npt.NDArray[np.void]:
        """Whole rows added since the last call. Raises RecordError, :class:`ReplacedError`."""
        data = self._read()
        self._position += len(data)
        try:
            return self._parser.parse(data)
        except ValueError as error:
            raise RecordError(f"{self.path}: {error}") from error
