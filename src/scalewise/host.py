"""What this process may use of the machine it runs on.

The host is what the process may use, not what the machine has: CPU affinity, cgroup limits
(version 1 and 2) and memory limits all count.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")


def processor_name() -> str:
    """The processor's model name, or the architecture where the kernel does not tell."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.machine()


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
        text = _read(folder / "cpu.max")
        if text and not text.startswith("max"):
            quota, period = text.split()[:2]
            quotas.append(int(quota) / int(period))
        quota_us, period_us = (
            _read(folder / "cpu.cfs_quota_us"),
            _read(folder / "cpu.cfs_period_us"),
        )
        if quota_us and period_us and int(quota_us) > 0:
            quotas.append(int(quota_us) / int(period_us))
    return min(quotas, default=None)


def memory_limit_mib(cgroup_root: Path = _CGROUP_ROOT) -> float | None:
    """The smallest memory limit of this process's cgroups in MiB; None if there is none."""
    limits: list[int] = []
    for folder in _own_cgroups(cgroup_root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name)
            # Version 1 spells "no limit" as a number near 2**63.
            if text and text != "max" and int(text) < 2**60:
                limits.append(int(text))
    return min(limits) / 2**20 if limits else None


def memory_available_mib(
    cgroup_root: Path = _CGROUP_ROOT, meminfo: Path = Path("/proc/meminfo")
) -> float | None:
    """Memory that may still be taken without pushing anybody out, in MiB: of the machine, and of
    this process's cgroups. None where neither tells."""
    free = [kib / 1024 for kib in [_labelled(meminfo, "MemAvailable:")] if kib is not None]
    for folder in _own_cgroups(cgroup_root):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _read(folder / limit_name), _read(folder / used_name)
            if limit and used and limit != "max" and int(limit) < 2**60:
                # Files read long ago count as used until somebody needs the room.
                cached = _labelled(folder / "memory.stat", "inactive_file") or 0
                free.append(max(0, int(limit) - int(used) + cached) / 2**20)
    return min(free, default=None)


def _labelled(path: Path, label: str) -> int | None:
    """The number after ``label`` at the beginning of a line."""
    for line in (_read(path) or "").splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == label:
            return int(words[1])
    return None


def oom_kills(cgroup_root: Path = _CGROUP_ROOT) -> int | None:
    """How often the kernel has killed for memory in this process's cgroup; None where it is not
    counted (version 1, or no cgroup)."""
    for folder in _own_cgroups(cgroup_root):
        for line in (_read(folder / "memory.events") or "").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None


def shared_memory_mib(path: Path = Path("/dev/shm")) -> float | None:
    """Size of the file system through which loader workers and NCCL share memory."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize / 2**20


def _own_cgroups(root: Path) -> Iterator[Path]:
    """Every folder from this process's cgroup up to the root, for each hierarchy."""
    memberships = _read(Path("/proc/self/cgroup")) or ""
    for line in memberships.splitlines():
        _, controllers, relative = line.split(":", 2)
        bases = (
            [root] if not controllers else [root / controllers, root / controllers.split(",")[0]]
        )
        for base in bases:
            folder = base / relative.lstrip("/")
            yield folder
            while folder != base:
                folder = folder.parent
                yield folder


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None
