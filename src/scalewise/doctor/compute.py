"""One device alone: matrix products, launches and long load; and the loop that times them all.

A repetition is a batch of ``iterations`` operations between two readings of the clock, so that
reading it costs nothing per operation; the time of one is the batch's divided by their number.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch

from scalewise.records import DeviceSample, GemmRate, LaunchCost, Soak, SoakWindow, Timing
from scalewise.train import Team

Precision = Literal["fp32", "tf32", "bf16", "fp16"]

_GPU_GEMM_SIZE = 8192
"""1.1e12 operations a product: every tile of a large GPU is busy, and 128 MiB a bf16 operand is
more than its cache holds."""

_CPU_GEMM_SIZE = 512
"""0.27e9 operations: milliseconds on a core, and tenths of a second without bf16 in hardware."""

_IN_QUEUE = 200
"""Fewer calls than the driver's queue holds, so that none waits for the GPU."""


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
    watch: Stopwatch, work: Work, budget_s: float, *, team: Team | None = None,
    prepare: Work | None = None, most_iterations: int = _MOST_ITERATIONS,
) -> Timing:  # fmt: skip
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


def precisions(device: torch.device) -> tuple[Precision, ...]:
    """Those that the device multiplies in hardware of its own; on a CPU what PyTorch offers."""
    if device.type == "cpu":
        return ("fp32", "bf16")
    capability = torch.cuda.get_device_capability(device)
    least: dict[Precision, tuple[int, ...]] = {"fp32": (), "tf32": (8,), "bf16": (8,), "fp16": (7,)}
    return tuple(p for p, at in least.items() if capability >= at)


def gemm_tflops(size: int, seconds: float) -> float:
    """10^12 operations a second of a square product: two for each of size^3 terms."""
    return 2 * size**3 / seconds / 1e12


def gemm_rate(device: torch.device, precision: Precision, budget_s: float) -> GemmRate:
    """The rate of products of that precision, sums in fp32 where the precision is lower."""
    # Of fp32 products, those called tf32 alone may use tensor cores.
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    size = _gemm_size(device)
    timing = measure(stopwatch(device), gemm(device, precision, size), budget_s)
    return GemmRate(precision, size, timing, gemm_tflops(size, timing.median_us / 1e6))


def gemm(device: torch.device, precision: Precision, size: int) -> Work:
    """A product of two random matrices into a buffer that is there already.

    Multiplying zeros draws less power and runs faster.
    """
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, device=device, generator=generator) for _ in range(2))
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    x, y = a.to(dtype), b.to(dtype)
    out = torch.empty_like(x)
    return lambda: torch.mm(x, y, out=out)


def _gemm_size(device: torch.device) -> int:
    """Rows and columns: on a GPU as many as leave half of the free memory."""
    if device.type == "cpu":
        return _CPU_GEMM_SIZE
    free, _ = torch.cuda.mem_get_info(device)
    size = _GPU_GEMM_SIZE
    # Two random fp32 matrices, their copies in the precision and the result: 20 bytes an entry.
    while size > 1024 and 40 * size**2 > free:
        size //= 2
    return size


def soak(device: torch.device, seconds: float, read: Callable[[], DeviceSample]) -> Soak:
    """Multiply for ``seconds`` in windows of 0.25 to 1 s; ``read`` is called once in each.

    On a GPU a window is enqueued within milliseconds: ``read`` looks at a device that is busy.
    """
    precision: Literal["fp32", "bf16"] = "fp32"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        precision = "bf16"
    size, watch = _gemm_size(device), stopwatch(device)
    work = gemm(device, precision, size)
    watch(work, 3)
    count = max(1, math.ceil(min(1.0, max(0.25, seconds / 40)) * 10 / watch(work, 10)))
    samples: list[DeviceSample] = []
    windows: list[SoakWindow] = []

    def window() -> None:
        for _ in range(count):
            work()
        samples.append(read())

    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        tflops = gemm_tflops(size, watch(window, 1) / count)
        one = samples[-1]
        told = one.sm_clock_mhz, one.temperature_c, one.power_w, one.throttle_reasons
        windows.append(SoakWindow(time.perf_counter() - begin, tflops, *told))
    return Soak(precision, size, tuple(windows))


def launch_cost(device: torch.device, budget_s: float) -> LaunchCost:
    """The host's time for an addition to one element: the smallest kernel PyTorch launches.

    ``perf_counter`` around many, the queue empty at the begin (on a CPU the work itself is in it).
    """
    cell = torch.ones(1, device=device)
    empty, most = None, _MOST_ITERATIONS
    if device.type == "cuda":
        empty, most = partial(torch.cuda.synchronize, device), _IN_QUEUE
    work = partial(cell.add_, 1.0)
    timing = measure(host_stopwatch, work, budget_s, prepare=empty, most_iterations=most)
    return LaunchCost("enqueue", timing)
