"""One reading at a time of a host's GPUs, or of the ranks' processes where there are none."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import psutil

from scalewise.gpu.nvml import GpuLost, Nvml
from scalewise.gpu.xid import DeviceEvent, XidWatch, xid_words
from scalewise.records import DeviceSample, SampledDevice

SLOW_INTERVAL_S = 10.0
GPM_INTERVAL_S = 1.0

_TREE_REFRESH_S = 2.0
"""How often the children of a rank are looked up again: that walks the whole process table."""

_MIN_CPU_WINDOW_S = 0.05
"""The kernel counts CPU time in ticks of 10 ms: over less than a few of them it says nothing."""


@dataclass(frozen=True)
class Reading:
    time: float
    """Unix time."""
    cost_ms: float
    """How long it took for all of them together."""
    samples: Mapping[str, DeviceSample]
    """By UUID; a device that is lost is absent."""
    events: Mapping[str, Sequence[DeviceEvent]] = field(default_factory=dict)
    """By UUID, what happened to a device."""
    faults: Sequence[str] = ()
    """Values that could not be read this time, and why."""
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Metrics that turned out not to be there, and why."""
    new: Sequence[SampledDevice] = ()
    """Processes that were not there before."""


class GpuReader:
    """The readings of some GPUs: each group when it is due. One that is lost is read no more.

    Not for use by two threads at once.
    """

    def __init__(self, nvml: Nvml, interval_s: float, wanted: Iterable[str] | None = None) -> None:
        """Of the UUIDs ``wanted`` that are there, every ``interval_s``; None for all of them."""
        self.nvml = nvml
        found = {d.uuid: d for d in nvml.devices()}
        uuids = found if wanted is None else wanted
        self.devices = {uuid: found[uuid] for uuid in uuids if uuid in found}
        self._interval_s = interval_s
        self._xids = XidWatch(nvml, self.devices.values())
        self._lost: set[str] = set()
        self._slow_at: dict[str, float] = {}
        self._gpm_at = -1e9

    def read(self, *, all_groups: bool = False) -> Reading:
        """One reading of them; ``all_groups`` reads the slow ones whether due or not."""
        begun, now, when = time.perf_counter(), time.monotonic(), time.time()
        # Half an interval early is nearer to the due time than half an interval late.
        gpm = all_groups or now - self._gpm_at > GPM_INTERVAL_S - self._interval_s / 2
        self._gpm_at = now if gpm else self._gpm_at
        events: defaultdict[str, list[DeviceEvent]] = defaultdict(list)
        for device, xid in self._xids.read() if gpm else ():
            text = f"GPU {device.index}: the driver reported {xid_words(xid)}"
            events[device.uuid].append(DeviceEvent(text, xid))
        samples: dict[str, DeviceSample] = {}
        present = {u: device for u, device in self.devices.items() if u not in self._lost}
        slow = set(present) if all_groups else self._slow_due(present, now)
        for uuid, device in present.items():
            try:
                samples[uuid] = self.nvml.sample(device, slow=uuid in slow, gpm=gpm)
            except GpuLost as error:
                self._lost.add(uuid)
                events[uuid].append(DeviceEvent(f"GPU {device.index} is lost: {error.reason}"))
        self._slow_at.update(dict.fromkeys(slow, now))
        cost_ms = 1e3 * (time.perf_counter() - begun)
        faults = [f"{where}: {reason}" for where, reason in self.nvml.faults.items()]
        self.nvml.faults.clear()
        return Reading(when, cost_ms, samples, events, faults, self.nvml.unavailable)

    def _slow_due(self, uuids: Collection[str], now: float) -> set[str]:
        """GPUs whose slow group is due, as few in one reading as keeps up with all of them.

        Eight energy counters together take 70 ms or more, and a beat at 10 Hz is 100 ms.
        """
        last = {uuid: self._slow_at.get(uuid, -1e9) for uuid in uuids}
        due = [u for u in uuids if now - last[u] > SLOW_INTERVAL_S - self._interval_s / 2]
        most = math.ceil(len(uuids) * self._interval_s / SLOW_INTERVAL_S)
        return set(sorted(due, key=lambda uuid: last[uuid])[:most])

    def close(self) -> None:
        self._xids.close()
        self.nvml.close()


class ProcessReader:
    """CPU time and resident memory of ranks, their children (loader workers) included.

    ``pids`` tells each living rank's process id, anew for each reading: ranks may start late.
    """

    def __init__(self, pids: Callable[[], Mapping[int, int]]) -> None:
        self._pids = pids
        self._trees: dict[int, _Tree] = {}

    def read(self, *, all_groups: bool = False) -> Reading:
        """One sample for each rank whose process lives; CPU is None the first time it is seen.

        Pages shared between a rank and its workers are counted once for each of them.
        """
        begun, when, pids = time.perf_counter(), time.time(), dict(self._pids())
        new = [
            SampledDevice(f"rank{rank}", rank, f"process of rank {rank}", rank)
            for rank in sorted(pids.keys() - self._trees.keys())
        ]
        samples = {}
        for rank, pid in pids.items():
            tree = self._trees.get(rank)
            if tree is None or tree.pid != pid:
                tree = self._trees[rank] = _Tree(pid)
            # Lightning starts rank 1 as a child of rank 0: each counts for itself.
            sample = tree.read(f"rank{rank}", others=frozenset(pids.values()) - {pid})
            if sample is not None:
                samples[sample.id] = sample
        return Reading(when, 1e3 * (time.perf_counter() - begun), samples, new=new)

    def close(self) -> None:
        """Nothing is held open."""


class _Tree:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._members: dict[int, psutil.Process] = {}
        self._cpu_s: dict[int, float] = {}
        self._refreshed_at = -_TREE_REFRESH_S
        self._read_at: float | None = None

    def read(self, name: str, others: frozenset[int]) -> DeviceSample | None:
        """CPU percent (100 is one core) since the last reading and RSS; None if gone.

        A process that is ending has given its memory back already: its RSS is None.
        ``others`` are descendants that are other ranks, with all below them.
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
        return DeviceSample(
            name, utilization_percent=self._cpu_percent(now, total_s), memory_used_mib=rss_mib
        )

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
            below = (found[pid].children(recursive=True) for pid in others & found.keys())
            theirs = others | {process.pid for each in below for process in each}
        except psutil.Error:
            return
        # Kept objects remember when their process was born, so that a reused pid is noticed.
        self._members = {i: self._members.get(i, p) for i, p in found.items() if i not in theirs}
