"""Stopwatches, and the one loop that times products, launches, copies and collectives.

A repetition is a batch of ``iterations`` operations between two readings of the clock, so that
reading it costs nothing per operation; the time of one is the batch's divided by their number.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from scalewise.records import Timing
from scalewise.train import Team

Work = Callable[[], object]

Stopwatch = Callable[[Work, int], float]
"""Seconds that so many iterations of the work take together."""

_LEAST_REPETITIONS, _MOST_REPETITIONS = 3, 7
_MOST_ITERATIONS = 1000
_LEAST_S = 1e-9


def host_stopwatch(work: Work, iterations: int) -> float:
    """``perf_counter`` around work that is done when the call returns."""
    begin = time.perf_counter()
    for _ in range(iterations):
        work()
    return time.perf_counter() - begin


def stream_stopwatch(lead: torch.cuda.Stream, other: torch.cuda.Stream | None = None) -> Stopwatch:
    """CUDA events before and after the work in a stream; another begins and ends with it.

    The host waits only after the second event. Where it enqueues slower than the GPU works, the
    time is that of enqueueing: what PyTorch gives, not what the GPU could do.
    """

    def seconds(work: Work, iterations: int) -> float:
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record(lead)
        if other is not None:
            other.wait_event(begin)
        for _ in range(iterations):
            work()
        if other is not None:
            lead.wait_event(other.record_event())
        end.record(lead)
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    return seconds


def stopwatch(device: torch.device) -> Stopwatch:
    """The one for work on that device, which must be the current device where it is a GPU."""
    if device.type == "cpu":
        return host_stopwatch
    return stream_stopwatch(torch.cuda.current_stream(device))


def repetitions(once_s: float, budget_s: float) -> tuple[int, int]:
    """(repetitions, iterations in each) that fit ``budget_s`` where one operation takes ``once_s``.

    At least three repetitions of one, whatever they take; at most seven of 1,000 iterations.
    """
    iterations = int(budget_s / _MOST_REPETITIONS / once_s)
    if iterations >= 1:
        return _MOST_REPETITIONS, min(iterations, _MOST_ITERATIONS)
    return max(_LEAST_REPETITIONS, min(_MOST_REPETITIONS, int(budget_s / once_s))), 1


def measure(
    watch: Stopwatch,
    work: Work,
    budget_s: float,
    *,
    team: Team | None = None,
    prepare: Work | None = None,
    most_iterations: int = _MOST_ITERATIONS,
) -> Timing:
    """Time ``work``: warm up, estimate, repeat for about ``budget_s``.

    The warm-up takes at least three operations and a tenth of the budget, so that lazy set-up and
    the rise of the clocks stay out of the figure.
    ``prepare`` runs before every batch, outside its time. Of a ``team`` all measure this at once:
    the slowest counts, and all do as much.
    """

    def batch(iterations: int) -> float:
        if prepare is not None:
            prepare()
        seconds = watch(work, iterations)
        if team is not None:
            (seconds,) = team.largest([seconds])
        # Events have a resolution of half a microsecond: an empty batch can read as nothing.
        return max(seconds / iterations, _LEAST_S)

    batch(1)
    warm_up = max(1, min(most_iterations, int(budget_s / 10 / batch(1))))
    count, iterations = repetitions(batch(warm_up), budget_s)
    iterations = min(iterations, most_iterations)
    samples_s: list[float] = []
    for done in range(count):
        if done >= _LEAST_REPETITIONS and sum(samples_s) * iterations > 2 * budget_s:
            break  # the warm-up was luckier than what followed
        samples_s.append(batch(iterations))
    return Timing(tuple(1e6 * second for second in samples_s), iterations)


def gb_per_s(byte_count: float, timing: Timing) -> float:
    """10^9 bytes a second at the median."""
    return byte_count / timing.median_us / 1e3
