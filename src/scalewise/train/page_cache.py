"""Files of a data set in the kernel's page cache: which lie there, and how to drop them."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

MOST_FILES = 100_000
"""More would take minutes to drop and to look at."""


def named_files(arguments: Mapping[str, Any]) -> list[Path]:
    """Files that arguments of a data set name, and those in folders that they name.

    Raises ValueError for more than :data:`MOST_FILES`.
    """
    named = (Path(value) for value in arguments.values() if isinstance(value, str) and value)
    files = list(islice((file for path in named for file in _files(path)), MOST_FILES + 1))
    if len(files) > MOST_FILES:
        raise ValueError(f"the data set has more than {MOST_FILES:,} files, too many to drop")
    return files


def _files(path: Path) -> Iterator[Path]:
    try:
        if path.is_file():
            yield path
        elif path.is_dir():
            yield from (one for one in path.rglob("*") if one.is_file())
    except (OSError, ValueError):  # ValueError: a text with a NUL is no path
        return


def drop_from_page_cache(files: Sequence[Path]) -> None:
    """Have the kernel forget these files. Raises OSError.

    It keeps pages that a process has mapped and touched, and all of a file system in memory.
    """
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())  # it keeps what is not yet written, too
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident_share(files: Sequence[Path]) -> float | None:
    """Share of the pages of these files that lie in memory; None without any. Raises OSError.

    The kernel shows a file's pages only to who owns it or may write it, and calls all of them
    resident to others (mincore(2)): those get a PermissionError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    resident = pages = 0
    for file in files:
        status = file.stat()
        if os.geteuid() not in (0, status.st_uid) and not os.access(file, os.W_OK):
            raise PermissionError(0, "who does not own a file is not shown what of it is in memory")
        if not status.st_size:
            continue
        mapped = np.memmap(file, "u1", "r")
        seen = np.empty(-(-mapped.size // mmap.PAGESIZE), "u1")
        where = (ctypes.c_void_p(one.ctypes.data) for one in (mapped, seen))
        if libc.mincore(next(where), ctypes.c_size_t(mapped.size), next(where)):
            raise OSError(number := ctypes.get_errno(), os.strerror(number))
        resident, pages = resident + int((seen & 1).sum()), pages + seen.size
    return resident / pages if pages else None
