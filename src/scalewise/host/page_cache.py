"""Files in the kernel's page cache: which lie there, how to drop them, what storage was read."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import psutil

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
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # it keeps what is not yet written, too
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident_share(files: Sequence[Path]) -> float | None:
    """Share of the pages of these files that lie in memory. Raises OSError.

    None without any page, and where the kernel does not tell: it shows a file's pages only to who
    owns it or may write it, and calls all of them resident to others (mincore(2)).
    """
    resident = pages = 0
    for file in files:
        status = file.stat()
        if os.geteuid() not in (0, status.st_uid) and not os.access(file, os.W_OK):
            return None
        seen = _resident_pages(file, status.st_size)
        resident, pages = resident + seen.count(1), pages + len(seen)
    return resident / pages if pages else None


def _resident_pages(file: Path, size: int) -> bytes:
    """A byte for each page: 1 where it is in memory."""
    if not size:
        return b""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    flags = (mmap.PROT_READ, mmap.MAP_SHARED)
    seen = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with file.open("rb") as opened:
        length, start = ctypes.c_size_t(size), ctypes.c_long(0)
        address = ctypes.c_void_p(libc.mmap(None, length, *flags, opened.fileno(), start))
        if address.value == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "cannot be mapped", str(file))
        failed = libc.mincore(address, length, seen)
        number = ctypes.get_errno()
        libc.munmap(address, length)
    if failed:
        raise OSError(number, os.strerror(number), str(file))
    return bytes(seen)


def storage_bytes_read() -> int | None:
    """Bytes that the kernel fetched from storage for this process and its living children.

    None where it does not count them.
    """
    me = psutil.Process()
    try:
        return sum(one.io_counters().read_bytes for one in (me, *me.children()))
    except (psutil.Error, AttributeError, NotImplementedError):
        return None
