"""How fast the host runs Python and launches kernels, before a run's first step.

Fresh processes of one configuration differ because their host does: this says by how much.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np
import torch
import torch.distributed as dist

from scalewise.records import HostProbe
from scalewise.train.torch_internals import default_store, empty_kernel

PROBE_S: Final = 0.1
"""Of each kind, over all ranks of a run: on every number of devices as many loops are timed."""
_TURNS = 5_000
"""Of the Python loop, 0.14 ms or more: short beside a scheduler's time slice."""
_LAUNCHES = 100
"""In a row: a tenth of what a stream holds before the host has to wait for the device."""
_LEFT_OUT = 0.1
"""Share of the loops, from the first, in which a core that slept comes to its clock."""


class NoTurnsError(RuntimeError):
    """Ranks that would time their probes at the same moment, each beside all others."""


def probe_host(run: str, rank: int, world_size: int, *, on_gpu: bool) -> HostProbe:
    """Time the probe, one rank after another. Every rank of the process group has to call it.

    The others sleep in the group's store meanwhile. ``run`` names what is probed, once a store.
    Raises :class:`NoTurnsError` where the ranks have no store to take turns by.
    """
    if world_size == 1:
        return _probe(PROBE_S, on_gpu=on_gpu)
    if not dist.is_initialized():
        raise NoTurnsError("the ranks have no process group by which to take turns")
    store = default_store()
    here, turn = f"host_probe/{run}/here", f"host_probe/{run}/turn"
    store.set(f"{here}/{rank}", "")
    # The first begins when nobody sets anything up any more.
    if rank == 0:
        store.wait([f"{here}/{other}" for other in range(world_size)])
    else:
        store.wait([f"{turn}/{rank}"])
    found = _probe(PROBE_S / world_size, on_gpu=on_gpu)
    store.set(f"{turn}/{rank + 1}", "")
    store.wait([f"{turn}/{world_size}"])
    return found


def _probe(seconds: float, *, on_gpu: bool) -> HostProbe:
    loops = _times_s(_loop, seconds)
    launches = _times_s(_launch, seconds, torch.cuda.synchronize) if on_gpu else None
    first, median, third = np.percentile(loops, (25, 50, 75))
    return HostProbe(
        loop_us=1e6 * median,
        loop_mean_us=1e6 * float(np.mean(loops)),
        loop_iqr_us=1e6 * (third - first),
        loops=len(loops),
        launches_per_s=None if launches is None else _LAUNCHES / float(np.median(launches)),
    )


def _times_s(
    work: Callable[[], None], seconds: float, settle: Callable[[], None] = lambda: None
) -> list[float]:
    """Seconds of each ``work``, one after another, without those of ``settle`` between them."""
    times: list[float] = []
    settle()
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
        settle()
    return times[int(_LEFT_OUT * len(times)) :]


def _loop() -> None:
    total = 0
    for number in range(_TURNS):
        total += number & 7


def _launch() -> None:
    for _ in range(_LAUNCHES):
        empty_kernel()
