"""One device alone: a stopwatch, and the rates of matrix products, launches and long load.

A repetition is a batch of ``iterations`` operations between two readings of the clock, so that
reading it costs nothing per operation; the time of one is the batch's divided by their number.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from scalewise.records import DeviceSample, GemmRate, LaunchCost, Soak, SoakWindow, Timing

Work = Callable[[], object]

Stopwatch = Callable[[Work, int], float]
"""Seconds that so many iterations of the work take together."""

Reading = Callable[[], DeviceSample | None]

Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]

LEAST_REPETITIONS, _MOST_REPETITIONS = 3, 7
_MAX_ITERATIONS = 1000
_LEAST_S = 1e-9

_GPU_GEMM_SIZE = 8192
"""1.1e12 operations a product: every tile of a large GPU is busy, and 128 MiB a bf16 operand is
more than its cache holds."""

_CPU_GEMM_SIZES = (128, 256, 512, 1024, 2048)
_CPU_GEMM_S = 0.02
"""The product whose time comes nearest from below is the one measured on a CPU."""

_CPU_SOAK_SIZE = 512

_CHAIN = 200
"""Kernels in the CUDA graph of many."""


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
    once_s = max(once_s, _LEAST_S)
    iterations = int(budget_s / _MOST_REPETITIONS / once_s)
    if iterations >= 1:
        return _MOST_REPETITIONS, min(iterations, _MAX_ITERATIONS)
    return max(LEAST_REPETITIONS, min(_MOST_REPETITIONS, int(budget_s / once_s))), 1


def measure(watch: Stopwatch, work: Work, budget_s: float) -> Timing:
    """Time ``work``: warm up, estimate, repeat for about ``budget_s``.

    The warm-up takes at least two operations and a tenth of the budget, so that lazy set-up and
    the rise of the clocks stay out of the figure.
    """
    watch(work, 1)
    once_s = watch(work, 1)
    watch(work, max(1, min(_MAX_ITERATIONS, int(budget_s / 10 / max(once_s, _LEAST_S)))))
    count, iterations = repetitions(once_s, budget_s)
    samples = [watch(work, iterations) / iterations for _ in range(count)]
    return to_timing(samples, iterations)


def to_timing(samples_s: list[float], iterations: int) -> Timing:
    """Seconds of one operation, a sample a repetition, as a record."""
    # Events have a resolution of half a microsecond: an empty batch can read as nothing.
    return Timing(tuple(max(s, _LEAST_S) * 1e6 for s in samples_s), iterations)


def gb_per_s(byte_count: float, timing: Timing) -> float:
    """10^9 bytes a second at the median."""
    return byte_count / timing.median_us / 1e3


def precisions(device: torch.device) -> tuple[Precision, ...]:
    """Those that the device multiplies in hardware of its own; on a CPU what PyTorch offers."""
    if device.type == "cpu":
        return ("fp32", "bf16")
    capability = torch.cuda.get_device_capability(device)
    found: list[Precision] = ["fp32"]
    found += ["tf32", "bf16"] if capability >= (8, 0) else []
    found += ["fp16"] if capability >= (7, 0) else []
    found += ["fp8"] if capability >= (8, 9) and hasattr(torch, "_scaled_mm") else []
    return tuple(found)


def gemm_tflops(size: int, seconds: float) -> float:
    """10^12 operations a second of a product of two square matrices: 2 size^3 in all.

    An addition and a multiplication for each of size^3 terms.
    """
    return 2 * size**3 / seconds / 1e12


def gemm_rate(device: torch.device, precision: Precision, budget_s: float) -> GemmRate:
    """The rate of products of that precision, sums in fp32 where the precision is lower."""
    watch = stopwatch(device)
    with _fp32_products(precision):
        size = _gemm_size(device, precision, watch)
        timing = measure(watch, gemm(device, precision, size), budget_s)
    return GemmRate(precision, size, timing, gemm_tflops(size, timing.median_us / 1e6))


def gemm(device: torch.device, precision: Precision, size: int) -> Work:
    """A product of two random matrices into a buffer that is there already (but for fp8).

    Multiplying zeros draws less power and runs faster.
    """
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, device=device, generator=generator) for _ in range(2))
    if precision == "fp8":
        # The hardware wants the second operand in columns, and a scale for each.
        left, right = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
        one = torch.ones((), device=device)
        return lambda: torch._scaled_mm(
            left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16
        )
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    x, y = a.to(dtype), b.to(dtype)
    out = torch.empty_like(x)
    return lambda: torch.mm(x, y, out=out)


@contextmanager
def _fp32_products(precision: Precision) -> Iterator[None]:
    """Let fp32 products use tensor cores for ``tf32`` and for nothing else."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _gemm_size(device: torch.device, precision: Precision, watch: Stopwatch) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        size = _GPU_GEMM_SIZE
        # Two random fp32 matrices, their copies in the precision, and the result.
        while size > 1024 and 5 * 4 * size**2 > free // 2:
            size //= 2
        return size
    chosen = _CPU_GEMM_SIZES[0]
    for size in _CPU_GEMM_SIZES:
        work = gemm(device, precision, size)
        watch(work, 1)
        taken = watch(work, 1)
        if taken > _CPU_GEMM_S and size > chosen:
            break
        chosen = size
        if 8 * taken > 2 * _CPU_GEMM_S:
            break  # the next size has eight times the work: not worth the trial
    return chosen


def soak(device: torch.device, seconds: float, read: Reading) -> Soak:
    """Multiply for ``seconds`` in windows of 0.25 to 1 s; ``read`` is called once in each.

    On a GPU a window is enqueued within milliseconds: ``read`` looks at a device that is busy.
    """
    precision: Literal["fp32", "bf16"] = "fp32"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        precision = "bf16"
    size = _GPU_GEMM_SIZE if device.type == "cuda" else _CPU_SOAK_SIZE
    work, watch = gemm(device, precision, size), stopwatch(device)
    watch(work, 3)
    window_s = min(1.0, max(0.25, seconds / 40))
    count = max(1, math.ceil(window_s * 10 / watch(work, 10)))
    sample: DeviceSample | None = None

    def window() -> None:
        nonlocal sample
        for _ in range(count):
            work()
        sample = read()

    windows: list[SoakWindow] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        tflops = gemm_tflops(size, watch(window, 1) / count)
        windows.append(_window(time.perf_counter() - begin, tflops, sample))
    return Soak(precision, size, tuple(windows))


def _window(at_s: float, tflops: float, sample: DeviceSample | None) -> SoakWindow:
    if sample is None:
        return SoakWindow(at_s, tflops, None, None, None, None)
    return SoakWindow(
        at_s,
        tflops,
        None if sample.sm_clock_mhz is None else int(sample.sm_clock_mhz),
        None if sample.temperature_c is None else int(sample.temperature_c),
        sample.power_w,
        sample.throttle_reasons,
    )


def launch_costs(device: torch.device, budget_s: float) -> tuple[LaunchCost, ...]:
    """Costs of an addition to one element: the smallest kernel PyTorch launches.

    ``enqueue`` is the host's time for a call, with perf_counter around many and the queue empty
    at the begin (on a CPU the work itself is in it). ``stream`` is the same calls between events:
    where it equals ``enqueue``, the host is what limits. ``round_trip`` waits after each.
    """
    cell = torch.ones(1, device=device)
    add: Work = lambda: cell.add_(1.0)  # noqa: E731
    share = budget_s / 5
    if device.type == "cpu":
        return (LaunchCost("enqueue", measure(host_stopwatch, add, share)),)
    events = stopwatch(device)

    def add_and_wait() -> None:
        add()
        torch.cuda.synchronize(device)

    def enqueue_s() -> float:
        # Fewer calls than the driver's queue holds, so that none waits for the GPU.
        torch.cuda.synchronize(device)
        return host_stopwatch(add, _CHAIN) / _CHAIN

    measured = [
        LaunchCost("enqueue", to_timing([enqueue_s() for _ in range(7)], _CHAIN)),
        LaunchCost("stream", measure(events, add, share)),
        LaunchCost("round_trip", measure(host_stopwatch, add_and_wait, share)),
    ]
    many, one = _graph(device, add, _CHAIN), _graph(device, add, 1)
    chain = measure(events, many.replay, share)
    kernels = [s / 1e6 / _CHAIN for s in chain.samples_us]
    measured.append(LaunchCost("graph_kernel", to_timing(kernels, chain.iterations * _CHAIN)))
    measured.append(LaunchCost("graph_replay", measure(events, one.replay, share)))
    return tuple(measured)


def _graph(device: torch.device, work: Work, count: int) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        torch.cuda.synchronize(device)
        with torch.cuda.graph(graph):
            for _ in range(count):
                work()
    return graph
