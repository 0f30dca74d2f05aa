"""Ranks sampled as processes: what a host without NVIDIA GPUs can say about its devices."""

from __future__ import annotations

import time
from collections.abc import Mapping

import psutil

from scalewise.records import DeviceSample, SampledDevice

_TREE_REFRESH_S = 2.0
"""How often the children of a rank are looked up again: that walks the whole process table."""


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
            reading = tree.read()
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

    def read(self) -> tuple[float | None, float] | None:
        """CPU percent (100 is one core) since the last reading and RSS in MiB; None if gone."""
        now = time.monotonic()
        if now - self._refreshed_at >= _TREE_REFRESH_S:
            self._refresh()
            self._refreshed_at = now
        used_s, rss, alive = 0.0, 0, False
        for pid, process in list(self._members.items()):
            try:
                with process.oneshot():
                    times, memory = process.cpu_times(), process.memory_info().rss
            except psutil.Error:
                # It ended: the CPU time since its last reading is lost with it.
                del self._members[pid]
                self._cpu_s.pop(pid, None)
                continue
            alive = alive or pid == self.pid
            total = times.user + times.system
            # A child that was born since the last reading spent all its time since then.
            used_s += total - self._cpu_s.get(pid, 0.0)
            self._cpu_s[pid] = total
            rss += memory
        if not alive:
            return None
        elapsed = None if self._read_at is None else now - self._read_at
        self._read_at = now
        return (100 * used_s / elapsed if elapsed else None), rss / 2**20

    def _refresh(self) -> None:
        try:
            root = self._members.get(self.pid) or psutil.Process(self.pid)
            found = {p.pid: p for p in (root, *root.children(recursive=True))}
        except psutil.Error:
            return
        # Kept objects remember when their process was born, so that a reused pid is noticed.
        self._members = {pid: self._members.get(pid, p) for pid, p in found.items()}
