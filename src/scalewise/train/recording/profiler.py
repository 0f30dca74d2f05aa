"""A few steps under torch's profiler: how long communication took, and how much of it was hidden.

On a GPU, kernels are sorted by name: NCCL's begin with ``nccl``. Intervals of several streams are
merged before anything is added up. On a CPU host the collectives are gloo's own ranges, and
computation is what operators of the training thread cover.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytorch_lightning as pl
import torch
from torch.nn.parallel import DistributedDataParallel

from scalewise.config import BLOCK_STEPS, BLOCKS, ProfileConfig
from scalewise.records import CellFolder, OperationTime, WindowProfile, save_profile
from scalewise.train.torch_internals import DeviceType

Intervals = npt.NDArray[np.int64]
"""Shape ``[n, 2]``: begin and end in nanoseconds."""


def covered_ns(intervals: Intervals) -> int:
    """Time that at least one of them covers."""
    begins, ends = intervals[np.argsort(intervals[:, 0])].T
    # Each adds what lies behind all that began before it.
    reached = np.maximum.accumulate(np.concatenate((begins[:1], ends)))[:-1]
    return int(np.maximum(ends - np.maximum(begins, reached), 0).sum())


def shared_ns(left: Intervals, right: Intervals) -> int:
    """Time that both cover: ``|A| + |B| - |A or B|``."""
    return covered_ns(left) + covered_ns(right) - covered_ns(np.concatenate((left, right)))


_LONGEST = 20
"""Operations that are no collectives, of which the record keeps the longest."""
_HOST_COLLECTIVES = ("gloo:", "nccl:", "mpi:", "ucc:")
"""How torch names the ranges of a process group's collectives, by backend."""


@dataclass(frozen=True)
class TimedOperation:
    """One kernel, or one operator or collective on a CPU host."""

    name: str
    begin_ns: int
    end_ns: int
    communication: bool


def kernels(events: Sequence[Any]) -> list[TimedOperation]:
    """Everything that ran on the device: kernels and copies, without the ranges drawn over them.

    ``events`` are kineto's. A range (``record_function``, ``nccl:all_reduce``) shows up on the
    device too, spanning the gaps between its kernels: it is no work.
    """
    ranges = {e.name() for e in events if not _on_device(e) and e.is_user_annotation()}
    return [
        _timed(event, event.name().lower().startswith("nccl"))
        for event in events
        if _on_device(event) and not event.is_user_annotation() and event.name() not in ranges
    ]


def host_operations(events: Sequence[Any]) -> list[TimedOperation]:
    """Collectives by their ranges, and the operators of the thread that trains.

    That thread is the one with the most operators: gloo's own threads run none of note.
    """
    collectives = [e for e in events if e.name().startswith(_HOST_COLLECTIVES)]
    operators = [
        e
        for e in events
        if not e.is_user_annotation() and not e.name().startswith(("c10d::", *_HOST_COLLECTIVES))
    ]
    by_thread: dict[int, list[Any]] = defaultdict(list)
    for event in operators:
        by_thread[event.start_thread_id()].append(event)
    trains = max(by_thread.values(), key=len, default=[])
    return [_timed(e, True) for e in collectives] + [_timed(e, False) for e in trains]


def summarise_window(
    rank: int,
    steps: int,
    timeline: Literal["device", "host"],
    operations: Sequence[TimedOperation],
    trace: str | None = None,
) -> WindowProfile:
    """Totals a step. Raises ValueError for a window without a step."""
    if steps < 1:
        raise ValueError(f"steps: found {steps}; allowed: 1 or more")
    collectives = sorted((s for s in operations if s.communication), key=lambda s: s.begin_ns)
    talking = _intervals(collectives)
    computing = _intervals(s for s in operations if not s.communication)
    missing = {}
    if not operations:
        missing["window"] = "the profiler saw nothing: neither a kernel nor an operator"
    elif not collectives:
        missing["communication_ms"] = "no collective ran in the window"
    begin = min((s.begin_ns for s in operations), default=0)
    end = max((s.end_ns for s in operations), default=0)
    per_step = 1e6 * steps
    return WindowProfile(
        rank=rank,
        steps=steps,
        timeline=timeline,
        span_ms=(end - begin) / per_step,
        computation_ms=covered_ns(computing) / per_step,
        communication_ms=covered_ns(talking) / per_step if collectives else None,
        overlapped_ms=shared_ns(talking, computing) / per_step if collectives else None,
        operations=_by_name(operations, per_step),
        collectives_ms=tuple((one.end_ns - one.begin_ns) / 1e6 for one in collectives),
        trace=trace,
        missing=missing,
    )


def _by_name(operations: Sequence[TimedOperation], per_step: float) -> tuple[OperationTime, ...]:
    durations: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for one in operations:
        durations[one.name, one.communication].append(one.end_ns - one.begin_ns)
    found = [
        OperationTime(name, len(each), sum(each) / per_step, communication)
        for (name, communication), each in durations.items()
    ]
    found.sort(key=lambda operation: -operation.ms_per_step)
    talk = [o for o in found if o.communication]
    return (*talk, *[o for o in found if not o.communication][:_LONGEST])


def _intervals(operations: Iterable[TimedOperation]) -> Intervals:
    pairs = [(one.begin_ns, one.end_ns) for one in operations]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _on_device(event: Any) -> bool:
    return bool(event.device_type() == DeviceType.CUDA)


def _timed(event: Any, communication: bool) -> TimedOperation:
    begin = int(event.start_ns())
    return TimedOperation(str(event.name()), begin, begin + int(event.duration_ns()), communication)


class ProfiledSteps:
    """Opens the profiler after warm-up and writes ``profile/rank<r>.json`` at the end.

    Under DDP, blocks of steps follow without profiler, in turn without and with the reduction of
    gradients: what that costs a step in all, the slower computation beside it included.
    """

    def __init__(self, folder: CellFolder, warmup_steps: int, profile: ProfileConfig) -> None:
        self._folder = folder
        self._first = warmup_steps
        self._profile = profile
        self._profiler: torch.profiler.profile | None = None
        self._found: WindowProfile | None = None
        self._steps = 0
        self._reduced: list[int] = []
        self._unreduced: list[int] = []

    def on_step(self, trainer: pl.Trainer, steps: int) -> None:
        """So many are done, which may be none."""
        self._steps = steps
        if self._profiler is not None and steps >= self._first + self._profile.steps:
            self._close(trainer)
        elif steps >= self._first and self._profiler is None and self._found is None:
            self._open(trainer)
        if self._found is not None and trainer.accumulate_grad_batches == 1:
            self._take_turns(trainer, steps)

    def end(self, trainer: pl.Trainer) -> None:
        if self._profiler is not None and self._steps > self._first:
            self._close(trainer)  # the data ended before the window did
        if self._found is not None:
            reduced, unreduced = tuple(self._reduced), tuple(self._unreduced)
            found = replace(self._found, reduced_steps=reduced, unreduced_steps=unreduced)
            save_profile(self._folder, found)

    def _open(self, trainer: pl.Trainer) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if _wait_for_gpu(trainer):
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(activities=activities)
        self._profiler.start()

    def _close(self, trainer: pl.Trainer) -> None:
        profiler, self._profiler = self._profiler, None
        assert profiler is not None
        on_gpu = _wait_for_gpu(trainer)
        profiler.stop()
        name = f"rank{trainer.global_rank}.trace.json.gz" if self._profile.trace else None
        if name is not None:
            self._folder.profile_path.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(self._folder.profile_path / name))
        assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
        events = profiler.profiler.kineto_results.events()
        operations = kernels(events) if on_gpu else host_operations(events)
        timeline: Literal["device", "host"] = "device" if on_gpu else "host"
        steps = self._steps - self._first
        self._found = summarise_window(trainer.global_rank, steps, timeline, operations, name)

    def _take_turns(self, trainer: pl.Trainer, done: int) -> None:
        """Decide whether the next step, number ``done``, reduces."""
        model = trainer.strategy.model
        if not isinstance(model, DistributedDataParallel):
            return
        block, place = divmod(done - self._first - self._profile.steps, BLOCK_STEPS)
        reduces = block >= BLOCKS or block % 2 == 1
        # What no_sync() sets for the length of a block.
        model.require_backward_grad_sync = reduces
        if block < BLOCKS and place > 0 and done < trainer.max_steps:  # the first one settles
            (self._reduced if reduces else self._unreduced).append(done)


def _wait_for_gpu(trainer: pl.Trainer) -> bool:
    """Wait for what the rank's GPU is still doing; False where it has none."""
    device = trainer.strategy.root_device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return device.type == "cuda"
