"""A process group of N ranks of which one is there.

What it hands back is what it was given, and of a gathered whole its own part as often as there are
ranks: of values nothing can be learned. Each collective is done as late as it would be over the
link, one after another, as on one stream of NCCL's. On a GPU a kernel of as many thread blocks as
NCCL has channels moves as much memory meanwhile; parts are copied beside it. On a CPU a
thread sleeps: gloo's own work for a reduction is missing, so no times of it count.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from scalewise.config import ConfigError, Link
from scalewise.records import Collective, bus_factor
from scalewise.train.torch_internals import let_find, work_of_future

BACKEND = "rehearsal"


def join_alone(ranks: int, link: Link, device: torch.device) -> None:
    """Make the process group of ``ranks`` of which this process is rank 0."""
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(
            BACKEND,
            lambda store, rank, size, timeout: RehearsedGroup(rank, size, link, device),
            devices=["cpu", "cuda"],
        )
    store: Any = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(BACKEND, store=store, rank=0, world_size=ranks)
    let_find(dist.group.WORLD)
    if lightning := sys.modules.get("lightning_fabric.utilities.distributed"):
        # Around prepare_data it makes a further group, which waits for ranks that are not there.
        lightning._InfiniteBarrier.__enter__ = lambda barrier: barrier


_Copy = Callable[[], object] | None
_Group: Any = dist.ProcessGroup
"""Its stub types what is called, not what a group of one's own is given."""


class RehearsedGroup(_Group):  # type: ignore[misc]
    """Rank ``rank`` of ``size``, alone."""

    def __init__(self, rank: int, size: int, link: Link, device: torch.device) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._link = rank, size, link
        self._clock = _GpuClock(device, link) if device.type == "cuda" else _CpuClock()

    def getBackendName(self) -> str:  # noqa: N802
        return BACKEND

    @property
    def group_name(self) -> str:
        return BACKEND

    pg_name = group_name

    def _after(self, kind: Collective, result: Any, size_bytes: int, copy: _Copy = None) -> Any:
        return self._clock.work(result, self._plan(kind, size_bytes), copy)

    @functools.cache  # noqa: B019 (there is one group, for as long as its process)
    def _plan(self, kind: Collective, size_bytes: int) -> Any:
        ranks = self._size
        moved_bytes = size_bytes * bus_factor(kind, ranks)
        if not self._link.through_host:
            # A ring of N reads and writes 3N-2 parts in memory for the 2N-2 that it sends: of two
            # steps with each of the others, the first adds what came in to its own.
            moved_bytes *= (3 * ranks - 2) / (2 * ranks - 2)
        return self._clock.plan(self._link.ms(kind, size_bytes, ranks), moved_bytes)

    def allreduce(self, tensors: Sequence[Tensor], opts: object = None) -> Any:
        return self._after("all_reduce", tensors, _bytes(tensors))

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Sequence[Tensor], opts: object = None) -> Any:
        return self._after("broadcast", tensors, _bytes(tensors))

    def allgather(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: object = None
    ) -> Any:
        for each, own in zip(outputs, inputs, strict=True):
            for output in each:
                output.copy_(own)
        return self._after("all_gather", outputs, sum(map(_bytes, outputs)))

    def _allgather_base(self, output: Tensor, own: Tensor, opts: object = None) -> Any:
        parts = (self._size, *own.shape)
        copy = partial(output.view(parts).copy_, own.expand(parts))
        return self._after("all_gather", [output], output.nbytes, copy)

    all_gather_single = _allgather_base
    """Its name since torch 2.13."""

    def reduce_scatter(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: object = None
    ) -> Any:
        for output, each in zip(outputs, inputs, strict=True):
            output.copy_(each[self._rank])
        return self._after("reduce_scatter", outputs, sum(map(_bytes, inputs)))

    def _reduce_scatter_base(self, output: Tensor, whole: Tensor, opts: object = None) -> Any:
        own = whole.reshape(self._size, *output.shape)[self._rank]
        return self._after("reduce_scatter", [output], whole.nbytes, partial(output.copy_, own))

    reduce_scatter_single = _reduce_scatter_base

    def barrier(self, opts: object = None) -> Any:
        return self._after("all_reduce", [torch.zeros(1)], 1)


def _refused(name: str) -> Any:
    def refuse(self: RehearsedGroup, *_: object, **__: object) -> None:
        raise ConfigError(
            f"rehearse: the training calls the collective {name}, which is not emulated; allowed: "
            "all-reduce, broadcast, all-gather, reduce-scatter and barrier"
        )

    return refuse


# Whatever a group of the installed torch can be asked for, and is not above.
for _name in dir(dist.ProcessGroup):
    if _name not in vars(RehearsedGroup) and "Work" in (getattr(_Group, _name).__doc__ or ""):
        setattr(RehearsedGroup, _name, _refused(_name))


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


class _GpuClock:
    """Work that ends when a kernel on a stream of its own has lasted so long.

    Its calls are few and cheap on purpose. A step has up to hundreds of buckets, and NCCL starts
    each from C++: what Python needs longer makes ranks late that in truth are not.
    """

    def __init__(self, device: torch.device, link: Link) -> None:
        from scalewise.train import rehearsal_kernel  # Triton, which a CPU's torch has not

        self._device = device
        self._stream = torch.cuda.Stream(device, priority=-1)
        self._ready, self._one_by_one = torch.cuda.Event(), threading.Lock()
        kernel = rehearsal_kernel.Occupation(device, link.blocks, link.through_host)
        self.plan, self._last = kernel.plan, kernel.last

    def work(self, result: Any, plan: Any, copy: _Copy) -> Any:
        stream, current = self._stream, torch.cuda.current_stream(self._device)
        self._let_wait_for(current)
        self._last(plan, stream)
        if copy is not None:
            copy()  # on the caller's stream, meanwhile: a link's time has writing in it
            self._let_wait_for(current)
            return _Arrival(stream.record_event(), self._device)
        torch.cuda.set_stream(stream)
        try:
            future: Any = Future(devices=[self._device])
            future.set_result(result)  # whoever waits for it waits for this stream
        finally:
            torch.cuda.set_stream(current)
        return work_of_future(future)

    def _let_wait_for(self, current: torch.cuda.Stream) -> None:
        with self._one_by_one:
            self._ready.record(current)
            self._ready.wait(self._stream)


class _Arrival(dist.Work):
    """Work that is done at an event: cheaper than a future, and like NCCL's it keeps no result."""

    def __init__(self, event: torch.cuda.Event, device: torch.device) -> None:
        super().__init__()
        self._event, self._device = event, device

    def is_completed(self) -> bool:
        return bool(self._event.query())

    def wait(self, timeout: object = None) -> bool:
        self._event.wait(torch.cuda.current_stream(self._device))
        return True


class _CpuClock:
    """Work that ends when a thread has slept so long, after the work before it."""

    def __init__(self) -> None:
        self._link = ThreadPoolExecutor(max_workers=1)
        self._free_at = 0.0

    def plan(self, ms: float, moved_bytes: float) -> float:
        return ms

    def work(self, result: Any, ms: float, copy: _Copy) -> Any:
        if copy is not None:
            copy()
        future: Any = Future()
        self._free_at = max(self._free_at, time.perf_counter()) + ms / 1e3
        self._link.submit(_end_at, self._free_at, future, result)
        return work_of_future(future)


def _end_at(moment: float, future: Any, result: Any) -> None:
    time.sleep(max(0.0, moment - time.perf_counter()))
    future.set_result(result)
