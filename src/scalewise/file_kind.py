"""What a path must be before it is read: a pipe without a writer would block for ever."""

from __future__ import annotations

import stat
from pathlib import Path

_IRREGULAR = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def irregular_kind(path: Path) -> str | None:
    """``a FIFO``, ``a socket`` or ``a ... device``, also behind symbolic links; else None.

    None too for a folder, and for what cannot be looked at: opening it says what is wrong, at once.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # ValueError: a text with a NUL is no path
        return None
    return _IRREGULAR.get(stat.S_IFMT(mode))
