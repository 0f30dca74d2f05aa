"""The largest batch that trains without running out of memory, the same on every rank.

Ranks try a size on their own: no gradient is reduced in a trial, so a rank that runs out of memory
leaves nobody waiting in an all-reduce. What came of it they tell each other through host memory,
and all go on with the same next size. Under DDP a rank puts aside what the reduction will take.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from scalewise.records.batch_search import BatchTrial
from scalewise.train.failure import failure_kind
from scalewise.train.trial_memory import TrialMemory

TRIAL_STEPS = 3
"""The first makes the optimizer's state, so that the second is the one that needs most."""
RESOLUTION = 16
"""The search ends when the largest that fits is known to one part in so many."""


@dataclass(frozen=True)
class OwnTrial:
    """What came of a size on one rank."""

    fits: bool
    peak_allocated_mib: float | None = None
    step_time_ms: float | None = None
    peak_rss_mib: float | None = None


class Agreement(Protocol):
    """How ranks tell each other; ``measure.doctor_team.Team`` is one."""

    rank: int
    size: int

    def largest(self, values: list[float]) -> list[float]:
        """The largest over all ranks, place by place."""
        ...


@dataclass(frozen=True)
class Found:
    """The end of a search."""

    largest: int
    limited_by_memory: bool
    trials: tuple[BatchTrial, ...]


def search(attempt: Callable[[int], OwnTrial], team: Agreement, first: int, most: int) -> Found:
    """Double from ``first`` until a rank runs out of memory, then halve the gap.

    Never tries more than ``most``. Raises ValueError if not even one sample fits.
    """
    trials: list[BatchTrial] = []

    def fits(size: int) -> bool:
        trials.append(_together(size, attempt(size), team))
        return trials[-1].outcome == "fits"

    low, high = 0, most + 1
    size = min(first, most)
    while low < size and size < high:
        if fits(size):
            low, size = size, min(2 * size, most)
        else:
            high, size = size, low
    while low == 0 and high > 1:
        # Not even the first size fitted: come down from there.
        if fits(high // 2):
            low = high // 2
        else:
            high //= 2
    while high <= most and high - low > max(1, low // RESOLUTION):
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    if low == 0:
        raise ValueError("batch_size: not even one sample fits in the memory of every device")
    return Found(low, high <= most, tuple(trials))


def _together(size: int, own: OwnTrial, team: Agreement) -> BatchTrial:
    """What came of ``size`` on all ranks. Every rank gets the same answer."""
    failed = [0.0] * team.size
    failed[team.rank] = float(not own.fits)
    figures = (own.peak_allocated_mib, own.step_time_ms, own.peak_rss_mib)
    worst = team.largest([*failed, *(-1.0 if value is None else value for value in figures)])
    out = tuple(rank for rank in range(team.size) if worst[rank])
    told = [None if out or value < 0 else value for value in worst[team.size :]]
    return BatchTrial(size, "oom" if out else "fits", out, *told)


def guarded(step: Callable[[int], None], memory: TrialMemory) -> Callable[[int], OwnTrial]:
    """An attempt that runs ``step(size)`` a few times and reports "out of memory" as a result.

    Whatever else goes wrong is raised.
    """

    def attempt(size: int) -> OwnTrial:
        memory.release()
        try:
            for _ in range(TRIAL_STEPS - 1):
                step(size)
            began = time.perf_counter()
            step(size)
            memory.settle()
            ms = (time.perf_counter() - began) * 1e3
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            # The traceback holds the tensors of the step that failed.
            error.__traceback__ = None
            memory.release()
            return OwnTrial(fits=False)
        allocated, resident = memory.peaks()
        return OwnTrial(True, allocated, ms, resident)

    return attempt


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device or the host had no memory left, in the words of torch and its libraries."""
    return failure_kind(error) == "oom"


def reduction_buffer(parameters: list[Tensor], views: bool) -> list[Tensor]:
    """What DDP will hold beside a replica: a copy of all gradients, unless they are views of it.

    With views its first step still holds both, which is where memory peaks.
    """
    held = parameters if not views else parameters[:1]
    return [torch.empty_like(parameter) for parameter in held if parameter.requires_grad]
