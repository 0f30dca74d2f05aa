"""Stopwatches for work on the host and on a GPU, and how often to repeat it.

A repetition is a batch of ``iterations`` operations between two readings of the clock, so that
reading it costs nothing per operation; the time of one is the batch's divided by their number.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch

from scalewise.records.doctor_rates import Timing

Work = Callable[[], object]

_MAX_ITERATIONS = 1000
_LEAST_S = 1e-9


class Stopwatch(Protocol):
    def seconds(self, work: Work, iterations: int) -> float:
        """Seconds that ``iterations`` of ``work`` take together."""
        ...


class HostStopwatch:
    """``perf_counter`` around work that is done when the call returns."""

    def seconds(self, work: Work, iterations: int) -> float:
        begin = time.perf_counter()
        for _ in range(iterations):
            work()
        return time.perf_counter() - begin


class DeviceStopwatch:
    """CUDA events before and after the work in the current stream of ``device``.

    The host waits only after the second event. Where it enqueues slower than the GPU works, the
    time is that of enqueueing: what PyTorch gives, not what the GPU could do.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def seconds(self, work: Work, iterations: int) -> float:
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        with torch.cuda.device(self._device):
            stream = torch.cuda.current_stream()
            begin.record(stream)
            for _ in range(iterations):
                work()
            end.record(stream)
            end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


def stopwatch(device: torch.device) -> Stopwatch:
    """The one for work on that device."""
    return DeviceStopwatch(device) if device.type == "cuda" else HostStopwatch()


def repetitions(once_s: float, budget_s: float, most: int = 7, least: int = 3) -> tuple[int, int]:
    """(repetitions, iterations in each) that fit ``budget_s`` where one operation takes ``once_s``.

    At least ``least`` repetitions of one, whatever they take; at most 1,000 iterations.
    """
    once_s = max(once_s, _LEAST_S)
    iterations = int(budget_s / most / once_s)
    if iterations >= 1:
        return most, min(iterations, _MAX_ITERATIONS)
    return max(least, min(most, int(budget_s / once_s))), 1


def measure(watch: Stopwatch, work: Work, budget_s: float) -> Timing:
    """Time ``work``: warm up, estimate, repeat for about ``budget_s``.

    The warm-up takes at least two operations and a tenth of the budget, so that lazy set-up and
    the rise of the clocks stay out of the figure.
    """
    watch.seconds(work, 1)
    once_s = watch.seconds(work, 1)
    watch.seconds(work, max(1, min(_MAX_ITERATIONS, int(budget_s / 10 / max(once_s, _LEAST_S)))))
    count, iterations = repetitions(once_s, budget_s)
    samples = [watch.seconds(work, iterations) / iterations for _ in range(count)]
    return to_timing(samples, iterations)


def to_timing(samples_s: list[float], iterations: int) -> Timing:
    """Seconds of one operation, a sample a repetition, as a record."""
    # Events have a resolution of half a microsecond: an empty batch can read as nothing.
    return Timing(tuple(max(s, _LEAST_S) * 1e6 for s in samples_s), iterations)


def gb_per_s(byte_count: float, timing: Timing) -> float:
    """10^9 bytes a second at the median."""
    return byte_count / timing.median_us / 1e3
