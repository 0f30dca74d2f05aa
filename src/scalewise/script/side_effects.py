"""What a run of a script leaves behind in the folder where its command was typed.

There are many runs, and the next one may find what this one wrote: it overwrites it, or goes on
from it as from a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_PASSED_OVER = ("__pycache__", "wandb", "node_modules")
"""Folders, beside hidden ones, in which nothing is of one run's alone or read again."""
_MOST_LOOKED_AT = 20_000
"""Files, for a folder that also holds the data."""


def changed_files(folder: Path, since: float, run: str) -> list[str]:
    """Files below ``folder`` that were written after ``since`` (Unix time), by their paths in it.

    Those of sweeps are left out, those of ``run``, which bear its name, and where the words of this
    process go.
    """
    own = [os.fstat(stream) for stream in (1, 2)]
    found = []
    for count, path in enumerate(_files(folder, run)):
        if count == _MOST_LOOKED_AT:
            break
        try:
            status = path.stat()
            if status.st_mtime >= since and not any(os.path.samestat(status, one) for one in own):
                found.append(str(path.relative_to(folder)))
        except FileNotFoundError:
            continue  # it was there for a moment
    return sorted(found)


def _files(folder: Path, run: str) -> Iterator[Path]:
    for at, folders, files in os.walk(folder):
        if "sweep.json" in files:
            folders.clear()
            continue
        folders[:] = [one for one in folders if _is_shared(one, run) and one not in _PASSED_OVER]
        yield from (Path(at) / one for one in files if _is_shared(one, run))


def _is_shared(name: str, run: str) -> bool:
    return not name.startswith(".") and run not in name
