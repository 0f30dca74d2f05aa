"""Which files a cell learnt from, told apart by size and content. Torch-free, and cheap.

A configuration names a file, and its id stays the same whatever is written there later. Records
therefore hold what the file was, and a resumed sweep looks whether it still is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PART_BYTES = 1 << 20
_INDEX = "index.json"
"""Of a folder of token shards: it holds the sum of each."""


def data_identity(arguments: Mapping[str, Any], base: Path | None = None) -> dict[str, str]:
    """What each file was that an argument of a data set names, by the argument's name.

    Args:
        arguments: of the data set, our own or a user's: texts that name a file, or a folder with
            an index of its own, are looked at. Any other folder is not: what belongs to it is
            known to its data set alone.
        base: folder that relative paths mean; the working directory where it is None.

    A file that cannot be read is left out: whoever needs it says so.
    """
    found: dict[str, str] = {}
    for name, value in sorted(arguments.items()):
        if not isinstance(value, str) or not value:
            continue
        try:
            path = (base or Path()) / value
            if path.is_dir():
                path /= _INDEX
            if path.is_file():
                found[name] = _told(path)
        except (OSError, ValueError):  # ValueError: a text with a NUL is no path
            continue
    return found


def changes(was: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """What became of each file that both know of and that is another by now, in words."""
    return {
        name: f"{was[name]} there, {now[name]} here"
        for name in was
        if name in now and was[name] != now[name]
    }


def _told(path: Path) -> str:
    """Size and sum; of a file of more than three MiB, of its first, middle and last MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size <= 3 * _PART_BYTES:
            starts, part_bytes = [0], size
        else:
            starts, part_bytes = [0, (size - _PART_BYTES) // 2, size - _PART_BYTES], _PART_BYTES
        for start in starts:
            file.seek(start)
            digest.update(file.read(part_bytes))
    return f"{size} bytes (sha256 {digest.hexdigest()[:12]})"
