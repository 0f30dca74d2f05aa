"""What one device can do at most: matrix products, copies, launches.

On a GPU everything is timed with events in the stream that does the work (see
:class:`~scalewise.measure.doctor_timing.DeviceStopwatch`), on a CPU with ``perf_counter``. Data are
random or a counting pattern, never zeros: multiplying zeros draws less power and runs faster, and
a page of zeros may not exist in memory at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from scalewise.measure.doctor_timing import (
    DeviceStopwatch,
    HostStopwatch,
    Stopwatch,
    Work,
    gb_per_s,
    measure,
    stopwatch,
    to_timing,
)
from scalewise.records.doctor import CopyRate, GemmRate, LaunchCost

Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]
Staging = Literal["h2d_pinned", "d2h_pinned", "h2d_pageable", "d2h_pageable"]
STAGING: tuple[Staging, ...] = ("h2d_pinned", "d2h_pinned", "h2d_pageable", "d2h_pageable")

_GPU_GEMM_SIZE = 8192
"""1.1e12 operations a product: every tile of a large GPU is busy, and 128 MiB a bf16 operand is
more than its cache holds."""
_CPU_GEMM_SIZES = (128, 256, 512, 1024, 2048)
_CPU_GEMM_S = 0.02
"""The product whose time comes nearest from below is the one measured on a CPU."""
_CHAIN = 200
"""Kernels in the CUDA graph of many."""


# Matrix products


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
    """A product of two random matrices into a buffer that is there already (but for fp8)."""
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
        watch.seconds(work, 1)
        taken = watch.seconds(work, 1)
        if taken > _CPU_GEMM_S and size > chosen:
            break
        chosen = size
        if 8 * taken > 2 * _CPU_GEMM_S:
            break  # the next size has eight times the work: not worth the trial
    return chosen


# Copies


def memory_copy(device: torch.device, byte_count: int, budget_s: float) -> CopyRate:
    """A copy inside the device's memory: its bandwidth is bytes read plus bytes written."""
    source = _pattern(byte_count, device)
    target = torch.empty_like(source).fill_(-1)
    timing = measure(stopwatch(device), lambda: target.copy_(source), budget_s)
    return CopyRate(
        "device" if device.type == "cuda" else "host",
        True,
        byte_count,
        timing,
        gb_per_s(2 * byte_count, timing),
        torch.equal(source, target),
    )


class HostStaging:
    """Copies between host memory and a GPU; the buffers are made once and used for all kinds.

    Pinned copies are asynchronous, pageable ones go through the driver's own pinned buffer while
    the host waits. Both are timed with events in the stream.
    """

    def __init__(self, device: torch.device, byte_count: int) -> None:
        self._device = device
        self._bytes = byte_count
        self._on_device = _pattern(byte_count, device)
        self._pageable = _pattern(byte_count, torch.device("cpu"))
        self._pinned = torch.empty_like(self._pageable, pin_memory=True)

    def prepare(self, kind: Staging) -> None:
        """Fill the source, and the target with something else. Takes the host longer than the
        copies, so ranks that copy together meet after it."""
        source, target = self._ends(kind)
        _write_pattern(source)
        target.fill_(-1)
        torch.cuda.synchronize(self._device)

    def measure(self, kind: Staging, budget_s: float, *, together: bool) -> CopyRate:
        """Time copies of that kind, prepared before, and compare what arrived."""
        source, target = self._ends(kind)
        work: Work = lambda: target.copy_(source, non_blocking=True)  # noqa: E731
        timing = measure(DeviceStopwatch(self._device), work, budget_s)
        # The stopwatch has waited for the last copy.
        correct = torch.equal(target, _pattern(self._bytes, target.device))
        rate = gb_per_s(self._bytes, timing)
        return CopyRate(kind, together, self._bytes, timing, rate, correct)

    def _ends(self, kind: Staging) -> tuple[torch.Tensor, torch.Tensor]:
        host = self._pinned if kind.endswith("pinned") else self._pageable
        return (host, self._on_device) if kind.startswith("h2d") else (self._on_device, host)

    def while_copying(self, look: Callable[[], object], seconds: float) -> None:
        """Call ``look`` while pinned copies of about that many seconds are under way."""
        work: Work = lambda: self._on_device.copy_(self._pinned, non_blocking=True)  # noqa: E731
        watch = DeviceStopwatch(self._device)
        watch.seconds(work, 1)
        once_s = watch.seconds(work, 1)
        for _ in range(max(1, min(500, int(seconds / once_s)))):
            work()
        try:
            look()
        finally:
            torch.cuda.synchronize(self._device)


def _pattern(byte_count: int, device: torch.device) -> torch.Tensor:
    """int32 values 0, 1, 2, ...: each place has its own, so that a misplaced byte shows."""
    return torch.arange(byte_count // 4, dtype=torch.int32, device=device)


def _write_pattern(tensor: torch.Tensor) -> None:
    """Whatever a failed copy has left in it."""
    torch.arange(tensor.numel(), out=tensor)


# Launches


def launch_costs(device: torch.device, budget_s: float) -> tuple[LaunchCost, ...]:
    """What an addition to one element costs: the smallest kernel PyTorch launches.

    ``enqueue`` is the host's time for a call, with perf_counter around many and the queue empty
    at the begin (on a CPU the work itself is in it). ``stream`` is the same calls between events:
    where it equals ``enqueue``, the host is what limits. ``round_trip`` waits after each.
    """
    cell = torch.ones(1, device=device)
    add: Work = lambda: cell.add_(1.0)  # noqa: E731
    share = budget_s / 5
    if device.type == "cpu":
        return (LaunchCost("enqueue", measure(HostStopwatch(), add, share)),)
    events = DeviceStopwatch(device)

    def add_and_wait() -> None:
        add()
        torch.cuda.synchronize(device)

    measured = [
        LaunchCost("enqueue", to_timing(_enqueue_s(device, add), _CHAIN)),
        LaunchCost("stream", measure(events, add, share)),
        LaunchCost("round_trip", measure(HostStopwatch(), add_and_wait, share)),
    ]
    many, one = _graph(device, add, _CHAIN), _graph(device, add, 1)
    chain = measure(events, many.replay, share)
    kernels = [s / 1e6 / _CHAIN for s in chain.samples_us]
    measured.append(LaunchCost("graph_kernel", to_timing(kernels, chain.iterations * _CHAIN)))
    measured.append(LaunchCost("graph_replay", measure(events, one.replay, share)))
    return tuple(measured)


def _enqueue_s(device: torch.device, work: Work, repeats: int = 7) -> list[float]:
    """Seconds of the host for one call. Fewer calls than the driver's queue holds, so that none
    waits for the GPU."""
    samples = []
    for _ in range(repeats):
        torch.cuda.synchronize(device)
        begin = time.perf_counter()
        for _ in range(_CHAIN):
            work()
        samples.append((time.perf_counter() - begin) / _CHAIN)
    torch.cuda.synchronize(device)
    return samples


def _graph(device: torch.device, work: Work, count: int) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        torch.cuda.synchronize(device)
        with torch.cuda.graph(graph):
            for _ in range(count):
                work()
    return graph
