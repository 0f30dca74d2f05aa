"""Who had the cores of a process between two moments: it and what it started, or others."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveInt

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class CoreUse:
    """CPU time on the cores that a process may run on, in a window of time."""

    cores: PositiveInt
    window_s: Annotated[float, Field(gt=0)]
    busy_s: NonNegativeFloat
    """Of all processes on these cores, and what a hypervisor gave to others (steal)."""
    own_s: NonNegativeFloat
    """Of the process and of all that it started."""


@dataclass(frozen=True)
class _Reading:
    time_s: float
    cores: frozenset[int]
    busy_s: float
    own_s: float


class CoreUseMeter:
    """Measures :class:`CoreUse` of this process from :meth:`begin` to :meth:`end`.

    A reading takes milliseconds on a busy host. The kernel counts the time of cores in ticks of
    10 ms, so that a window below a second tells little. What interrupts cost is left out: those of
    the process's own network and disks are nobody else's.
    """

    def __init__(self, proc: Path = _PROC) -> None:
        self.missing: str | None = None
        self._proc = proc
        self._begin: _Reading | None = None

    def begin(self) -> None:
        """From here on, whatever began before."""
        self._begin = self._read()

    def end(self) -> CoreUse | None:
        """What was used since; None where it is not known, said in ``missing``."""
        before, now = self._begin, self._read()
        if before is None or now is None:
            return None
        if now.cores != before.cores:
            self.missing = "the process was bound to other cores meanwhile"
            return None
        return CoreUse(
            len(now.cores),
            max(now.time_s - before.time_s, 1e-9),
            max(0.0, now.busy_s - before.busy_s),
            max(0.0, now.own_s - before.own_s),
        )

    def _read(self) -> _Reading | None:
        cores = frozenset(os.sched_getaffinity(0))
        try:
            busy_s = _busy_s(self._proc, cores)
            return _Reading(time.monotonic(), cores, busy_s, _tree_s(self._proc))
        except (OSError, ValueError, IndexError) as error:
            self.missing = f"{self._proc}: {error}"
            return None


def _busy_s(proc: Path, cores: Collection[int]) -> float:
    """CPU time on these cores since the host started: user, nice, system and steal."""
    ticks = 0
    for line in (proc / "stat").read_text(encoding="ascii").splitlines():
        name, _, counts = line.partition(" ")
        if name[:3] == "cpu" and name[3:].isdigit() and int(name[3:]) in cores:
            each = [int(count) for count in counts.split()]
            ticks += sum(each[:3]) + each[7]
    return ticks / _TICKS_PER_S


def _tree_s(proc: Path) -> float:
    """CPU time of this process and of all it started, ended ones included."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own_s = sum(one.ru_utime + one.ru_stime for one in used)
    return own_s + sum(_with_ended_children_s(proc / str(pid)) for pid in _below(proc, os.getpid()))


def _below(proc: Path, pid: int) -> Iterator[int]:
    """Every process below ``pid``, by the lists that the kernel keeps: no pass over all others."""
    for task in (proc / str(pid) / "task").glob("*"):
        try:
            children = (task / "children").read_text(encoding="ascii").split()
        except (FileNotFoundError, ProcessLookupError):
            if (task / "stat").exists():
                raise  # a kernel without these lists, and not a thread that has just ended
            continue
        for child in map(int, children):
            yield child
            yield from _below(proc, child)


def _with_ended_children_s(process: Path) -> float:
    """0 for a process that has just ended: its parent's time includes it."""
    try:
        text = (process / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    # The name in brackets may hold anything. Then utime, stime, cutime and cstime.
    fields = text.rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS_PER_S
