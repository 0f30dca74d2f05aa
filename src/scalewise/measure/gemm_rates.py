"""How fast one device multiplies matrices, in each precision it has hardware for.

On a GPU everything is timed with events in the stream that does the work (see
:class:`~scalewise.measure.doctor_timing.DeviceStopwatch`), on a CPU with ``perf_counter``. The
matrices are random: multiplying zeros draws less power and runs faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from scalewise.measure.doctor_timing import Stopwatch, Work, measure, stopwatch
from scalewise.records.doctor_rates import GemmRate

Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]

_GPU_GEMM_SIZE = 8192
"""1.1e12 operations a product: every tile of a large GPU is busy, and 128 MiB a bf16 operand is
more than its cache holds."""
_CPU_GEMM_SIZES = (128, 256, 512, 1024, 2048)
_CPU_GEMM_S = 0.02
"""The product whose time comes nearest from below is the one measured on a CPU."""


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
