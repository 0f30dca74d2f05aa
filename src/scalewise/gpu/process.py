"""Ranks sampled as processes: what a host without NVIDIA GPUs can say about its devices."""

from __future__ import annotations

import time
from collections.abc import Mapping

import psutil

from scalewise.records import DeviceSample, SampledDevice

_TREE_REFRESH_S = 2.0
"""How often the children of a rank are looked up again: that walks the whole process table."""

_MIN_CPU_WINDOW_S = 0.05
"""The kernel counts CPU time in ticks of 10 ms: over less than a few of them it says nothing."""


def process_device(rank: int) -> SampledDevice:
    """The device under which the process of ``rank`` is recorded."""
    return SampledDevice(f"rank{rank}", rank, f"process of rank {rank}", rank)


class ProcessReader:
    """CPU time and resident memory of ranks, their children (loader workers) included."""

    def __init__(self) -> None:
        self._trees: dict[int, _Tree] = {}

    def read(self, pids: Mapping[int, int]) -> dict[str, DeviceSample]:
        """One sample for each rank whose process lives; CPU is None the first time it is seen.

        Pages shared between a rank and its workers are counted once for each of them.
        """
        samples = {}
        for rank, pid in pids.items():
            tree = self._trees.get(rank)
            if tree is None or tree.pid != pid:
                tree = self._trees[rank] = _Tree(pid)
            # Lightning starts rank 1 as a child of rank 0: each counts for itself.
            reading = tree.read(others=frozenset(pids.values()) - {pid})
            if reading is not None:
                cpu_percent, rss_mib = reading
                samples[f"rank{rank}"] = DeviceSample(
                    f"rank{rank}", utilization_percent=cpu_percent, memory_used_mib=rss_mib
                )
        return samples


class _Tree:
    """A process and its descendants."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._members: dict[int, psutil.Process] = {}
        self._cpu_s: dict[int, float] = {}
        self._refreshed_at = -_TREE_REFRESH_S
        self._read_at: float | None = None

    def read(self, others: frozenset[int]) -> tuple[float | None, float | None] | None:
        """CPU percent (100 is one core) since the last reading and RSS in MiB; None if gone.

        Whoever is ending has already given its memory back while it still is in the process
        table: what a rank held then is not known, and its RSS is None.
        ``others`` are descendants that belong to somebody else, with all below them.
        """
        now = time.monotonic()
        if now - self._refreshed_at >= _TREE_REFRESH_S:
            self._refresh(others)
            self._refreshed_at = now
        total_s: dict[int, float] = {}
        rss: dict[int, int] = {}
        for pid, process in list(self._members.items()):
            try:
                with process.oneshot():
                    times, memory = process.cpu_times(), process.memory_info().rss
            except psutil.Error:
                # It ended: the CPU time since its last reading is lost with it.
                del self._members[pid]
                continue
            total_s[pid] = times.user + times.system
            rss[pid] = memory
        if self.pid not in total_s:
            return None
        rss_mib = sum(rss.values()) / 2**20 if rss[self.pid] else None
        return self._cpu_percent(now, total_s), rss_mib

    def _cpu_percent(self, now: float, total_s: dict[int, float]) -> float | None:
        before_s, read_at = self._cpu_s, self._read_at
        if read_at is not None and now - read_at < _MIN_CPU_WINDOW_S:
            return None
        self._cpu_s, self._read_at = total_s, now
        if read_at is None:
            return None
        # A child that was born since the last reading spent all its time since then.
        used_s = sum(total - before_s.get(pid, 0.0) for pid, total in total_s.items())
        return 100 * used_s / (now - read_at)

    def _refresh(self, others: frozenset[int]) -> None:
        try:
            root = self._members.get(self.pid) or psutil.Process(self.pid)
            found = {p.pid: p for p in (root, *root.children(recursive=True))}
            for pid in others & found.keys():
                for process in (found[pid], *found[pid].children(recursive=True)):
                    found.pop(process.pid, None)
        except psutil.Error:
            return
        # Kept objects remember when their process was born, so that a reused pid is noticed.
        self._members = {pid: self._members.get(pid, p) for pid, p in found.items()}
