"""What the driver calls a busy GPU, beside the time that kernels of known length take.

    python benchmarks/gpu_activity.py

For each load one line: ms of a step, ms of its kernels (torch's profiler, overlaps once), their
share of the step, and what the driver says of it: GPM's graphics (engine), SM and tensor activity
over three seconds, and the last readings of NVML's utilisation. Needs one GPU of Hopper or newer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pynvml
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

WINDOW_S = 3.0
PROFILED_STEPS = 30
METRICS = {
    "engine": pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
    "SM": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "tensor": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
}
Step = Callable[[], Any]


def measure(name: str, step: Step, handle: Any) -> None:
    """Print the line of one load."""
    for _ in range(20):
        step()
    torch.cuda.synchronize()
    utilization: list[int] = []
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(0.25):
            utilization.append(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)

    poller = threading.Thread(target=poll)
    poller.start()
    before, after = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
    pynvml.nvmlGpmSampleGet(handle, before)
    begin, steps = time.perf_counter(), 0
    while time.perf_counter() - begin < WINDOW_S:
        step()
        steps += 1
    torch.cuda.synchronize()
    step_ms = 1e3 * (time.perf_counter() - begin) / steps
    pynvml.nvmlGpmSampleGet(handle, after)
    ended.set()
    poller.join()
    told = ", ".join(f"{key} {percent:.1f}" for key, percent in activity(before, after).items())
    kernels = kernel_ms(step)
    share = 100 * kernels / step_ms
    print(
        f"{name:32} step {step_ms:8.4f} ms, kernels {kernels:8.4f} ms, {share:5.1f} %; {told}; "
        f"utilisation {utilization[-4:]}",
        flush=True,
    )


def activity(before: Any, after: Any) -> dict[str, float]:
    """Percent between two GPM samples."""
    query = pynvml.c_nvmlGpmMetricsGet_t()
    query.version, query.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(METRICS)
    query.sample1, query.sample2 = before, after
    for slot, metric in enumerate(METRICS.values()):
        query.metrics[slot].metricId = metric
    pynvml.nvmlGpmMetricsGet(query)
    return {key: query.metrics[slot].value for slot, key in enumerate(METRICS)}


def kernel_ms(step: Step) -> float:
    """Time of a step in which any kernel ran."""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(PROFILED_STEPS):
            step()
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    events = found.events() or []
    spans = sorted((e.time_range.start, e.time_range.end) for e in events if e.device_type == cuda)
    busy, until = 0.0, 0.0
    for begin, end in spans:
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return busy / PROFILED_STEPS / 1e3


def mlp(hidden: int, batch: int) -> Step:
    """A training step of four layers, launched kernel by kernel."""
    sizes = [50, *[hidden] * 4]
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(hidden, 3)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), fused=True, capturable=True)
    x, y = torch.randn(batch, 50, device="cuda"), torch.randn(batch, 3, device="cuda")

    def step() -> None:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()

    return step


def replayed(step: Step) -> Step:
    """The same as one CUDA graph."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def duty(share: float, period_s: float = 2e-3, cycles_per_s: float = 1.7e9) -> Step:
    """One kernel of a single thread for about ``share`` of each period."""

    def step() -> None:
        begin = time.perf_counter()
        torch.cuda._sleep(int(share * period_s * cycles_per_s))
        torch.cuda.current_stream().synchronize()
        while time.perf_counter() - begin < period_s:
            pass

    return step


def many(count: int, cycles: int) -> Step:
    """Short kernels in a row."""

    def step() -> None:
        for _ in range(count):
            torch.cuda._sleep(cycles)
        torch.cuda.current_stream().synchronize()

    return step


def main() -> None:
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def product() -> None:
        torch.matmul(matrix, matrix)
        torch.cuda.current_stream().synchronize()

    measure("bf16 product of 8192", product, handle)
    for hidden, batch in ((128, 128), (512, 4096), (2048, 16384)):
        measure(f"MLP of {hidden}, batch {batch}", mlp(hidden, batch), handle)
    measure("MLP of 128, batch 128, graph", replayed(mlp(128, 128)), handle)
    for share in (0.2, 0.5, 0.8):
        measure(f"one kernel, {share:.0%} of 2 ms", duty(share), handle)
    measure("100 kernels of 3 us", many(100, 5000), handle)


if __name__ == "__main__":
    main()
