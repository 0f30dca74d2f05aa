"""Cores and memory that this process may use, and who had the cores meanwhile.

The host is what the process may use, not what the machine has: CPU affinity, cgroup limits
(version 1 and 2) and memory limits all count.
"""

from __future__ import annotations

import math
import os
import platform
import resource
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psutil
from pydantic import Field, NonNegativeFloat, PositiveInt

_CGROUP_ROOT = Path("/sys/fs/cgroup")


def processor_name() -> str:
    """The processor's model name, or the architecture where the kernel does not tell."""
    lines = (kernel_text(Path("/proc/cpuinfo")) or "").splitlines()
    told = (map(str.strip, line.split(":", 1)) for line in lines if ":" in line)
    return next((value for key, value in told if key == "model name"), platform.machine())


def usable_cores(cgroup_root: Path = _CGROUP_ROOT) -> tuple[int, ...]:
    """The CPU cores this process may run on, in order.

    Where a cgroup grants less CPU time than the affinity mask has cores, only the first
    ``ceil(quota)`` are counted: promising more than there is would make every share of it slower.
    """
    cores = sorted(os.sched_getaffinity(0))
    quota = cpu_quota(cgroup_root)
    if quota is not None:
        cores = cores[: max(1, math.ceil(quota))]
    return tuple(cores)


def cpu_quota(cgroup_root: Path = _CGROUP_ROOT) -> float | None:
    """CPU time per wall time the cgroups allow, the smallest on the way up; None if unlimited."""
    quotas: list[float] = []
    for folder in _own_cgroups(cgroup_root):
        version_1 = [kernel_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        for words in ((kernel_text(folder / "cpu.max") or "").split(), version_1):
            # Version 1 spells "no limit" as -1.
            if len(words) == 2 and words[0] and words[1] and words[0] not in ("max", "-1"):
                quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def memory_limit_mib(cgroup_root: Path = _CGROUP_ROOT) -> float | None:
    """The smallest memory limit of this process's cgroups in MiB; None if there is none."""
    names = ("memory.max", "memory.limit_in_bytes")
    texts = (kernel_text(folder / name) for folder in _own_cgroups(cgroup_root) for name in names)
    limits = (int(text) for text in texts if text and text != "max")
    # Version 1 spells "no limit" as a number near 2**63.
    return min((limit / 2**20 for limit in limits if limit < 2**60), default=None)


def oom_kills(cgroup_root: Path = _CGROUP_ROOT) -> int | None:
    """How often the kernel has killed for memory in this process's cgroup; None where it is not
    counted (version 1, or no cgroup)."""
    for folder in _own_cgroups(cgroup_root):
        lines = (kernel_text(folder / "memory.events") or "").splitlines()
        counts = dict(line.split(maxsplit=1) for line in lines)
        if "oom_kill" in counts:
            return int(counts["oom_kill"])
    return None


def shared_memory_mib() -> tuple[float | None, float | None]:
    """Size and free part of the file system through which loader workers and NCCL share memory;
    None where there is none."""
    try:
        found = psutil.disk_usage("/dev/shm")
    except OSError:
        return None, None
    return found.total / 2**20, found.free / 2**20


def _own_cgroups(root: Path) -> Iterator[Path]:
    """Every folder from this process's cgroup up to the root, for each hierarchy."""
    for line in (kernel_text(Path("/proc/self/cgroup")) or "").splitlines():
        _, controllers, relative = line.split(":", 2)
        named = [root / controllers, root / controllers.split(",")[0]] if controllers else [root]
        own = Path(relative.lstrip("/"))
        for base in named:
            yield from (base / folder for folder in (own, *own.parents))


def kernel_text(path: Path) -> str | None:
    """A file of the kernel, stripped; None where it is not there, or not for this user."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class RunQueue:
    """Run-queue delay of the calling thread between two moments, from the kernel's own count.

    The kernel adds to it whenever the thread is put on a core, so that reading it costs nothing
    while training. A thread that waits for a lock, a device or a peer is not ready to run and
    counts for nothing here.

    Beside it stands the CPU time of the process's other threads: they too may have held the core
    that the training thread waited for, and then no other process is to blame.

    ``path`` holds the time on a core, the time ready and without one (both in ns), and a count.
    """

    def __init__(self, path: Path = _SCHEDSTAT) -> None:
        self.missing: str | None = None
        self._path = path
        self._begin: tuple[int, int, int] | None = None
        """Steps made, ns of delay, and ns of the other threads."""

    def begin(self, step: int) -> None:
        """From here on; ``step`` steps have been made."""
        now = self._read()
        self._begin = None if now is None else (step, *now)

    def ms_per_step(self, step: int) -> tuple[float | None, float | None]:
        """Mean ms a step since :meth:`begin`: the delay, and CPU time of the other threads.

        None where they are not known, said in ``missing``.
        """
        now = self._read()
        if now is None or self._begin is None or step <= self._begin[0]:
            return None, None
        first, *before = self._begin
        delay, others = ((b - a) / 1e6 / (step - first) for a, b in zip(before, now, strict=True))
        return delay, max(0.0, others)

    def _read(self) -> tuple[int, int] | None:
        try:
            delay_ns = int(self._path.read_text().split()[1])
            return delay_ns, time.process_time_ns() - time.thread_time_ns()
        except (OSError, ValueError, IndexError) as error:
            self.missing = f"{self._path}: {error or 'not in the format expected'}"
            return None


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


class CoreUseMeter:
    """Measures :class:`CoreUse` of this process from :meth:`begin` to :meth:`end`.

    A reading takes milliseconds on a busy host. The kernel counts the time of cores in ticks of
    10 ms, so that a window below a second tells little. What interrupts cost is left out: those of
    the process's own network and disks are nobody else's.
    """

    def __init__(self, proc: Path = _PROC) -> None:
        self.missing: str | None = None
        self._proc = proc
        self._begin: tuple[frozenset[int], float, float, float] | None = None
        """Cores; seconds of a clock, of all processes on these cores, and of this one's."""

    def begin(self) -> None:
        """From here on, whatever began before."""
        self._begin = self._read()

    def end(self) -> CoreUse | None:
        """What was used since; None where it is not known, said in ``missing``."""
        before, now = self._begin, self._read()
        if before is None or now is None:
            return None
        (cores, *began), (cores_now, *ended) = before, now
        if cores_now != cores:
            self.missing = "the process was bound to other cores meanwhile"
            return None
        window_s, busy_s, own_s = (max(0.0, b - a) for a, b in zip(began, ended, strict=True))
        return CoreUse(len(cores), max(window_s, 1e-9), busy_s, own_s)

    def _read(self) -> tuple[frozenset[int], float, float, float] | None:
        cores = frozenset(os.sched_getaffinity(0))
        try:
            return cores, time.monotonic(), _busy_s(self._proc, cores), _tree_s(self._proc)
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
    return sum(map(int, text.rpartition(")")[2].split()[11:15])) / _TICKS_PER_S
