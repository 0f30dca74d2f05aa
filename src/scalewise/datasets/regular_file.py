"""What a data file has to be before it is opened: a pipe without a writer would block for ever."""

from __future__ import annotations

import stat
from pathlib import Path

from scalewise.datasets.errors import DatasetError

_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


def check_regular(path: Path, wanted: str) -> None:
    """Raises :class:`DatasetError` for pipes, sockets and devices, also behind symbolic links.

    Folders, and what cannot be looked at, pass: opening them says what is wrong, at once.
    ``wanted`` is what to give instead, such as ``a CSV file``.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # ValueError: a text with a NUL is no path
        return
    for is_kind, name in _KINDS:
        if is_kind(mode):
            raise DatasetError(f"dataset.path: {path} is no regular file but {name}; give {wanted}")


def check_not_empty(path: Path, size_bytes: int) -> None:
    """Raises :class:`DatasetError` for a text file of no bytes."""
    if not size_bytes:
        raise DatasetError(f"dataset.path: {path} is empty; give a text file that holds text")
