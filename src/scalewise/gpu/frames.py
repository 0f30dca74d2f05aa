"""What ``scalewise top`` shows, one frame at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from scalewise.records import DeviceSample, SampledDevice

_WORKER_MODULE = "scalewise.sweep.worker"


@dataclass(frozen=True)
class Owner:
    """Who a process on a GPU is."""

    pid: int
    name: str
    rank: int | None
    cell: str | None
    """The cell's name, for a rank that scalewise started."""
    memory_mib: float | None


@dataclass(frozen=True)
class Frame:
    """All devices at one moment."""

    time: float
    """Unix time."""
    devices: tuple[SampledDevice, ...]
    samples: Mapping[str, DeviceSample]
    """By device id; a device that is lost is absent."""
    owners: Mapping[str, tuple[Owner, ...]]
    """Processes by device id."""
    notes: tuple[str, ...] = ()
    """What happened, in words."""


def identify(pid: int) -> Owner:
    """Name, rank and cell of a process; what cannot be read is left out."""
    try:
        process = psutil.Process(pid)
        name, words = process.name(), process.cmdline()
    except psutil.Error:
        # Another user's, or numbered in another pid namespace.
        return Owner(pid, "?", None, None, None)
    cell = None
    if _WORKER_MODULE in words[:-1]:
        cell = Path(words[words.index(_WORKER_MODULE) + 1]).name
    try:
        rank = process.environ().get("RANK", "")
    except psutil.Error:
        rank = ""
    return Owner(
        pid, _script_name(name, words), int(rank) if rank.isdecimal() else None, cell, None
    )


def _script_name(name: str, words: Sequence[str]) -> str:
    """``python train.py`` tells more than ``python``."""
    script = next((w for w in words[1:] if w.endswith(".py")), None)
    return f"{name} {os.path.basename(script)}" if script else name  # noqa: PTH119 - not a file here
