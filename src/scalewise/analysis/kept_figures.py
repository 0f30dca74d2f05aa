"""Figures of a cell's steps, kept beside it so that its rows are read once.

A kept file counts only for the very step files, result and code it was made of, and only whole:
anything else is measured anew, without a word. It is a copy of what the rows say, never a source.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from importlib.resources import files
from typing import Final

from pydantic_core import to_json

from scalewise.analysis.step_figures import StepFigures
from scalewise.records import (
    CellFolder,
    CellResult,
    build,
    data_shards_of,
    parse_json,
    write_atomically,
)

KEPT_FILE: Final = "step_figures.json"
_LEAST_ROWS: Final = 20_000
"""Fewer take no longer to measure than to read back."""


def figures_key(folder: CellFolder, result: CellResult | None) -> str:
    """SHA-256 of all that figures depend on. Raises OSError where a step file is gone."""
    stats = [(rank, folder.steps_path(rank).stat()) for rank in folder.ranks_with_steps()]
    told = result and [
        result.world_size,
        [rank.step_rows for rank in result.ranks],
        data_shards_of(result.ranks),
        [rank.execution and rank.execution.prepare_steps for rank in result.ranks],
    ]
    # Nobody sets a file's time of change: a time restored after an edit is no sign of old rows.
    rows = [(rank, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for rank, s in stats]
    made_of = [_code(), rows, told]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()


@functools.cache
def _code() -> str:
    """SHA-256 of the code that reads and measures steps."""
    found = hashlib.sha256()
    for room in ("analysis", "records"):
        for file in sorted(files(f"scalewise.{room}").iterdir(), key=lambda one: one.name):
            if file.name.endswith(".py"):
                found.update(file.read_bytes())
    return found.hexdigest()


def find_figures(folder: CellFolder, key: str) -> StepFigures | None:
    """What was kept under ``key``; None where there is no such file or it is damaged."""
    try:
        head, _, body = (folder.path / KEPT_FILE).read_bytes().partition(b"\n")
        if head.decode() != f"{key} {hashlib.sha256(body).hexdigest()}":
            return None
        return build(StepFigures, parse_json(body))
    except (OSError, ValueError):
        return None


def keep_figures(folder: CellFolder, key: str, figures: StepFigures) -> None:
    """Keep them for the next reader, if they are of many rows."""
    if sum(rank.steps for rank in figures.ranks) < _LEAST_ROWS:
        return
    body = to_json(figures)
    head = f"{key} {hashlib.sha256(body).hexdigest()}\n".encode()
    with contextlib.suppress(OSError):  # a folder that is read-only is measured every time
        write_atomically(folder.path / KEPT_FILE, head + body)
