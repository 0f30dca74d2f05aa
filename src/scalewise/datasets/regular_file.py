"""What a data file has to be before it is opened: a pipe without a writer would block for ever."""

from __future__ import annotations

from pathlib import Path

from scalewise.datasets.errors import DatasetError
from scalewise.file_kind import irregular_kind


def check_regular(path: Path, wanted: str) -> None:
    """Raises :class:`DatasetError` for pipes, sockets and devices, also behind symbolic links.

    Folders, and what cannot be looked at, pass: opening them says what is wrong, at once.
    ``wanted`` is what to give instead, such as ``a CSV file``.
    """
    kind = irregular_kind(path)
    if kind is not None:
        raise DatasetError(f"dataset.path: {path} is no regular file but {kind}; give {wanted}")


def check_not_empty(path: Path, size_bytes: int) -> None:
    """Raises :class:`DatasetError` for a text file of no bytes."""
    if not size_bytes:
        raise DatasetError(f"dataset.path: {path} is empty; give a text file that holds text")
