"""The checkpoints of a cell: which of them is whole, and what it was saved under.

``checkpoints/step-<n>/`` holds Lightning's own ``trainer.ckpt``, and of each rank ``rank<r>.pt``
(random states) and ``metrics<r>.jsonl`` (its metrics so far). ``checkpoint.json`` is written last,
with the sum of every file, and then the folder gets its name.
"""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import NonNegativeInt

from scalewise.records.files import (
    FileName,
    RecordError,
    WorldSize,
    load_json,
    open_record,
    save_json,
)

_META = "checkpoint.json"


@dataclass(frozen=True)
class Checkpoint:
    """What ``checkpoint.json`` says."""

    step: NonNegativeInt
    """Optimizer steps done."""
    batch: NonNegativeInt
    """Batches of the current epoch that each rank has drawn."""
    world_size: WorldSize
    samples: tuple[NonNegativeInt, ...]
    """Fed so far, by rank."""
    devices: tuple[str, ...]
    """Models of the devices, sorted, each once."""
    code: Mapping[str, object]
    """Commit and difference of the working tree; empty if unknown."""
    files: Mapping[FileName, str]
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


def untrusted(cell: Path) -> str | None:
    """Who but its user may have put something into a cell's checkpoints; None for nobody.

    To load a checkpoint can be to run what it holds. As ssh does with its keys, the files and every
    folder up to the sweep's are looked at: who may write a folder may replace all below it.
    """
    inside = sorted((cell / "checkpoints").rglob("*"))
    for path in (cell.parent, cell, cell / "checkpoints", *inside):
        status = path.stat()
        if status.st_uid not in (0, os.geteuid()):
            return f"{path} belongs to the user {status.st_uid}, not to {os.geteuid()}"
        shared = status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid)
        if status.st_mode & stat.S_IWOTH or shared:
            return f"others can write {path} (mode {stat.S_IMODE(status.st_mode):o})"
    return None


def _is_private_group(gid: int) -> bool:
    """Whether the group is this user's alone, as where the umask is 002: one of his own name."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return (group.gr_gid, group.gr_name) == (user.pw_gid, user.pw_name) and set(group.gr_mem) <= {
        user.pw_name
    }


def drop_checkpoints(cell: Path) -> None:
    """Remove every checkpoint of a cell."""
    shutil.rmtree(cell / "checkpoints", ignore_errors=True)


def _sum(path: Path) -> str | None:
    try:
        with open_record(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
