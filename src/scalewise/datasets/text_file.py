"""Any text file, byte by byte."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from scalewise.datasets.byte_tokens import ByteParts, check_windows
from scalewise.datasets.errors import DatasetError, check_not_empty
from scalewise.datasets.split import check_split
from scalewise.datasets.tensors import TokenWindows
from scalewise.ranges import require


class TextFile:
    """Windows of ``sequence_length`` bytes of one file; the target is the next byte.

    The end of the file is held out for validation: the text of a window is never in both parts.
    """

    def __init__(
        self,
        path: str | None = None,
        sequence_length: int = 256,
        validation_fraction: float = 0.1,
        max_validation_samples: int | None = 512,
        seed: int = 42,
    ) -> None:
        require("path", path, bool(path), "the path of a text file, dataset.path=FILE")
        check_windows(sequence_length, max_validation_samples)
        check_split(validation_fraction)
        self.path = Path(str(path))
        self.sequence_length = sequence_length
        self.validation_fraction = validation_fraction
        self.max_validation_samples = max_validation_samples
        self.seed = seed

    @cached_property
    def _parts(self) -> ByteParts:
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise DatasetError(
                f"dataset.path: {self.path} cannot be read: {error.strerror}; give a text file"
            ) from error
        check_not_empty(self.path, len(data))
        end = len(data) - round(len(data) * self.validation_fraction)
        return ByteParts(
            data[:end],
            data[end:],
            self.sequence_length,
            self.max_validation_samples,
            self.path.name,
        )

    @property
    def train(self) -> TokenWindows:
        return self._parts.train

    @property
    def validation(self) -> TokenWindows | None:
        return self._parts.validation

    def describe(self) -> dict[str, Any]:
        return self._parts.describe()
