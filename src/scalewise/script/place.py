"""The place that a supervisor gave to a rank of a script, who takes it, and what its run leaves.

There are many runs: the next one overwrites what this one wrote where its command was typed, or
goes on from it as from a checkpoint.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from scalewise.host import ENV_SCRIPT
from scalewise.records import CellFolder, RehearsalRecord, build

_SITE = Path(__file__).parent / "site"


def python_path(before: str | None) -> str:
    """``PYTHONPATH`` of a rank: ``before``, and in front of it what makes it ready."""
    return os.pathsep.join([str(_SITE), *([before] if before else [])])


@dataclass(frozen=True)
class Place:
    """One rank of a cell, before anything has taken it."""

    folder: str
    """Of the cell, absolute."""
    rank: int
    local_rank: int
    world_size: int
    hosts: int
    cwd: str
    """Where the command was typed: a script may go elsewhere."""
    cores: int
    """Cores of the host, for all ranks."""
    as_torchrun: bool
    """Whether a single rank got the variables of torchrun, since it asked for them."""
    rehearsed: bool = False
    """Whether it is one of more ranks than there are."""


@dataclass(frozen=True)
class Task:
    """What a recorder has to know beside its place."""

    name: str
    """Of the script, or of its model: how messages begin."""
    warmup_steps: int
    max_steps: int | None = None
    ends_by_time: bool = False
    min_time_s: float | None = None
    """Seconds of timed steps; None leaves them to the device."""
    log_every_n_steps: int = 10
    rehearsed: RehearsalRecord | None = None


def take_place(environment: MutableMapping[str, str], *, in_child: bool = False) -> Place | None:
    """The place of this process, if it is the first of its rank to ask; None for all others.

    One ``in_child`` of a script is told its place and takes none, whoever is first.

    What it starts from now on is none of the rank: the trace is removed from ``environment``.
    """
    told = environment.pop(ENV_SCRIPT, None)
    if told is None:
        return None
    before = environment.get("PYTHONPATH", "").split(os.pathsep)
    rest = os.pathsep.join(path for path in before if path != str(_SITE))
    environment["PYTHONPATH"] = rest
    if not rest:
        del environment["PYTHONPATH"]
    place = build(Place, json.loads(told))
    if in_child:
        return place
    sign = CellFolder(Path(place.folder)).heartbeat_path(place.rank)
    sign.parent.mkdir(parents=True, exist_ok=True)
    try:
        sign.open("xb").close()  # the file is the lock: a rank has one heart
    except FileExistsError:
        return None
    return place


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
