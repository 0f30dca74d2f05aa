"""The checkpoints of a cell: which of them is whole, and what it was saved under.

``checkpoints/step-<n>/`` holds Lightning's own ``trainer.ckpt``, and of each rank ``rank<r>.pt``
(random states) and ``metrics<r>.jsonl`` (its metrics so far). ``checkpoint.json`` is written last,
with the sum of every file, and then the folder gets its name.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scalewise.records.files import RecordError, load_json, open_record, save_json

_META = "checkpoint.json"


@dataclass(frozen=True)
class Checkpoint:
    """What ``checkpoint.json`` says."""

    step: int
    """Optimizer steps done."""
    batch: int
    """Batches of the current epoch that each rank has drawn."""
    world_size: int
    samples: tuple[int, ...]
    """Fed so far, by rank."""
    devices: tuple[str, ...]
    """Models of the devices, sorted, each once."""
    code: Mapping[str, object]
    """Commit and difference of the working tree; empty if unknown."""
    files: Mapping[str, str]
    """SHA-256 of each file."""


def part_path(cell: Path, step: int) -> Path:
    """Where the ranks put the files of a checkpoint that is not whole yet."""
    return cell / "checkpoints" / f"step-{step:09d}.part"


def seal(part: Path, checkpoint: Checkpoint) -> Path:
    """Make ``part`` the cell's last checkpoint, once all its files are on disk."""
    sums: dict[str, str] = {}
    for path in sorted(part.iterdir()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        sums[path.name] = _sum(path) or ""
    meta = {**vars(checkpoint), "files": sums}
    save_json(part / _META, Checkpoint(**meta))
    whole = part.with_suffix("")
    if whole.exists():
        shutil.rmtree(whole)
    part.rename(whole)
    for old in whole.parent.iterdir():
        if old != whole and old.name < whole.name:
            shutil.rmtree(old)
    return whole


def has_checkpoints(cell: Path) -> bool:
    """Whether a checkpoint was ever whole, be it damaged since."""
    return any(folder.suffix != ".part" for folder in (cell / "checkpoints").glob("step-*"))


def last_checkpoint(cell: Path) -> tuple[Path, Checkpoint] | None:
    """The latest checkpoint whose files are all as they were written; None if there is none."""
    for folder in sorted((cell / "checkpoints").glob("step-*"), reverse=True):
        if folder.suffix == ".part":
            continue
        try:
            found = load_json(folder / _META, Checkpoint)
        except RecordError:
            continue
        if all(_sum(folder / name) == known for name, known in found.files.items()):
            return folder, found
    return None


def drop_checkpoints(cell: Path) -> None:
    """Remove every checkpoint of a cell."""
    shutil.rmtree(cell / "checkpoints", ignore_errors=True)


def _sum(path: Path) -> str | None:
    try:
        with open_record(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
