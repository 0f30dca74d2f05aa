"""The place that a supervisor gave to a rank of a script, and who takes it."""

from __future__ import annotations

import json
import os
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from scalewise.host import ENV_SCRIPT
from scalewise.records import CellFolder, build

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
