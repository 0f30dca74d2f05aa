"""What ``scalewise top`` shows, one frame at a time, and the frames of a recording."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from scalewise.gpu.seed_format import read_seed_file
from scalewise.records import (
    DeviceSample,
    DeviceSeries,
    RecordError,
    SampledDevice,
    read_device_series,
)

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


class FrameSource(Protocol):
    """Where frames come from."""

    @property
    def title(self) -> str:
        """Where they come from, in words; it may change from frame to frame."""

    def next(self) -> Frame | None:
        """The next frame, or None at the end of a recording."""

    def close(self) -> None: ...


class RecordedFrames:
    """A recording: a cell's ``gpu/<host>.jsonl``, or either of the earlier GPU monitor's files."""

    def __init__(self, path: Path) -> None:
        """Raises :class:`~scalewise.records.RecordError` where it cannot be read."""
        series = read_recording(path)
        self.title = f"replay of {path.name}"
        self._frames = _recorded(series)

    def next(self) -> Frame | None:
        return next(self._frames, None)

    def close(self) -> None:
        pass


def read_recording(path: Path) -> DeviceSeries:
    """A device series in scalewise's own format or in one of the earlier GPU monitor's."""
    if path.suffix == ".jsonl":
        try:
            return read_device_series(path)
        except RecordError as own:
            try:
                return read_seed_file(path)
            except RecordError:
                raise own from None
    return read_seed_file(path)


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
    return Owner(pid, _short_name(name, words), int(rank) if rank.isdecimal() else None, cell, None)


def _short_name(name: str, words: Sequence[str]) -> str:
    """``python train.py`` tells more than ``python``."""
    script = next((w for w in words[1:] if w.endswith(".py")), None)
    return f"{name} {os.path.basename(script)}" if script else name  # noqa: PTH119 - not a file here


def _recorded(series: DeviceSeries) -> Iterator[Frame]:
    owners: dict[str, tuple[Owner, ...]] = {}
    for when, samples in zip(series.times, series.samples, strict=True):
        for uuid, sample in samples.items():
            if sample.processes is not None:
                owners[uuid] = tuple(
                    Owner(p.pid, "", None, None, p.memory_mib) for p in sample.processes
                )
        yield Frame(when, series.devices, samples, dict(owners))
