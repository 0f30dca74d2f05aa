"""How fast the ranks talk in one collective at one size.

Collectives are timed as NVIDIA's nccl-tests does it: a batch of them back to back, the time of one
is the batch's divided by their number. On GPUs with CUDA events in the stream that waits for the
collective, after an untimed one that lets all ranks begin together; with gloo with ``perf_counter``
after a barrier. Every rank times itself and the slowest counts. The first result is compared with
what it must be (see :mod:`~scalewise.measure.collective_exercise`).
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from scalewise.measure.collective_exercise import Exercise, exercise, most_iterations
from scalewise.measure.doctor_team import Team
from scalewise.measure.doctor_timing import Stopwatch, repetitions, stopwatch, to_timing
from scalewise.records.doctor_rates import Backend, Collective, CollectiveRate

_LEAST_REPETITIONS = 3


def bus_factor(collective: Collective, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests' PERFORMANCE.md defines it.

    All-reduce 2(n-1)/n; all-gather and reduce-scatter (n-1)/n; broadcast 1. With it, a figure can
    be compared with the speed of the links whatever the number of ranks.
    """
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return 1.0 if collective == "broadcast" else (ranks - 1) / ranks


def algorithm_gb_s(byte_count: int, seconds: float) -> float:
    """10^9 bytes a second: the size of the whole message over the time of one collective."""
    return byte_count / seconds / 1e9


class NoMemoryError(RuntimeError):
    """A message is too large for some rank."""


def measure_collective(
    team: Team,
    backend: Backend,
    collective: Collective,
    byte_count: int,
    budget_s: float,
    device: torch.device,
    group: Any,
) -> CollectiveRate:
    """Time one collective at one size on every rank.

    Raises :class:`NoMemoryError` on all ranks where one lacks it, and what the backend raises.
    """
    task: Exercise | None = None
    # Said below by all ranks together: one alone in a collective would wait for ever.
    with suppress(torch.OutOfMemoryError, MemoryError):
        task = exercise(collective, byte_count, team.rank, team.size, device, group)
    if not team.all_agree(task is not None) or task is None:
        raise NoMemoryError(f"not every rank has memory for {byte_count} bytes")
    task.fill()
    team.barrier()
    task.run()
    correct = team.all_agree(task.is_right())
    watch = stopwatch(device)
    count, iterations = _plan_repetitions(team, task, watch, collective, budget_s)
    samples: list[float] = []
    begin = time.perf_counter()
    for done in range(count):
        (elapsed_s,) = team.largest([time.perf_counter() - begin])
        if done >= _LEAST_REPETITIONS and elapsed_s > 2 * budget_s:
            break  # the trial was luckier than what followed
        samples.append(_repetition(team, task, watch, iterations, device, group))
    timing = to_timing(team.largest(samples), iterations)
    rate = algorithm_gb_s(task.byte_count, timing.median_us / 1e6)
    return CollectiveRate(
        backend,
        collective,
        team.size,
        task.byte_count,
        timing,
        rate,
        rate * bus_factor(collective, team.size),
        correct,
    )


def _plan_repetitions(
    team: Team, task: Exercise, watch: Stopwatch, collective: Collective, budget_s: float
) -> tuple[int, int]:
    """(repetitions, iterations) from two trials, the second of up to ten, alike on all ranks."""
    most = most_iterations(collective, team.size)
    iterations = 2
    for longest in (min(10, most), most):
        task.fill()
        team.barrier()
        (once_s,) = team.largest([watch.seconds(task.run, iterations) / iterations])
        count, iterations = repetitions(once_s, budget_s, least=_LEAST_REPETITIONS)
        iterations = min(iterations, longest)
    return count, iterations


def _repetition(
    team: Team, task: Exercise, watch: Stopwatch, iterations: int, device: torch.device, group: Any
) -> float:
    task.fill()
    team.barrier()
    if device.type == "cuda":
        # The ranks leave a barrier of the hosts some 0.1 ms apart; a collective in the stream
        # brings them within microseconds before the first event.
        dist.all_reduce(torch.ones(1, device=device), group=group)
    return watch.seconds(task.run, iterations) / iterations
