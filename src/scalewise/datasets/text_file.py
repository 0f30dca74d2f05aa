"""Any text file, byte by byte."""

from __future__ import annotations

import platform
import sysconfig
from functools import cached_property
from pathlib import Path
from typing import Any

from scalewise.config import DatasetError, check_not_empty, require
from scalewise.datasets.contract import ByteParts, TokenWindows, check_windows, join
from scalewise.datasets.labelled import check_split, split_indices

# Real text on every machine: the running interpreter's own standard library, byte by byte.


_NOT_OURS = frozenset({"site-packages", "dist-packages", "__pycache__"})
"""Folders below the standard library that hold what a user installed."""


def library_files(root: Path) -> list[Path]:
    """Every ``.py`` file below ``root`` but installed packages, in the order of their paths."""
    files = [
        path
        for path in root.rglob("*.py")
        if not _NOT_OURS.intersection(path.relative_to(root).parts) and path.is_file()
    ]
    return sorted(files, key=lambda path: path.relative_to(root).as_posix())


class Stdlib:
    """Windows of ``sequence_length`` bytes of Python sources; the target is the next byte.

    Whole files are either trained on or held out, drawn with ``seed``. ``root`` is another folder
    of Python sources to take instead; null is the running interpreter's standard library.
    """

    def __init__(
        self,
        sequence_length: int = 256,
        validation_fraction: float = 0.1,
        max_validation_samples: int | None = 512,
        root: str | None = None,
        seed: int = 42,
    ) -> None:
        check_windows(sequence_length, max_validation_samples)
        check_split(validation_fraction)
        self.sequence_length = sequence_length
        self.validation_fraction = validation_fraction
        self.max_validation_samples = max_validation_samples
        self.root = root
        self.seed = seed

    @cached_property
    def _parts(self) -> ByteParts:
        root = Path(self.root or sysconfig.get_path("stdlib"))
        files = library_files(root)
        if not files:
            raise DatasetError(
                f"dataset.root: found no .py file in {root}; allowed: a folder of Python sources "
                "(this interpreter may come without its sources: give dataset.root, or use "
                "dataset=text_file)"
            )
        texts = [_read(path) for path in files]
        train, validation = split_indices(len(files), self.validation_fraction, self.seed)
        return ByteParts(
            join([texts[i] for i in sorted(train)]),
            join([texts[i] for i in sorted(validation)]),
            self.sequence_length,
            self.max_validation_samples,
            self.source,
        )

    @property
    def source(self) -> str:
        """What the bytes are, without naming the machine's folders."""
        if self.root is not None:
            return f"Python sources in {Path(self.root).name}"
        return f"standard library of Python {platform.python_version()}"

    @property
    def train(self) -> TokenWindows:
        return self._parts.train

    @property
    def validation(self) -> TokenWindows | None:
        return self._parts.validation

    def describe(self) -> dict[str, Any]:
        return self._parts.describe()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DatasetError(
            f"dataset.root: {path} cannot be read: {error.strerror}; make it readable or remove it"
        ) from error


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
