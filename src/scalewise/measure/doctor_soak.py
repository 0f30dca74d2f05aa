"""Products of matrices without a pause, while clocks, temperature and limits are read."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

import torch

from scalewise.measure.doctor_timing import DeviceStopwatch
from scalewise.measure.gemm_rates import gemm, gemm_tflops
from scalewise.records import DeviceSample
from scalewise.records.doctor_rates import Soak, SoakWindow

_GPU_SIZE, _CPU_SIZE = 8192, 512

Reading = Callable[[], DeviceSample | None]


def soak(device: torch.device, seconds: float, read: Reading) -> Soak:
    """Multiply for ``seconds`` in windows of 0.25 to 1 s; ``read`` is called once in each.

    On a GPU the stream never runs dry: a window is enqueued before the last one ends, and the
    events between them, which cut the time line, are waited for two windows late.
    """
    window_s = min(1.0, max(0.25, seconds / 40))
    if device.type == "cuda":
        return _soak_gpu(device, seconds, window_s, read)
    return _soak_cpu(device, seconds, window_s, read)


def _soak_gpu(device: torch.device, seconds: float, window_s: float, read: Reading) -> Soak:
    precision: Literal["fp32", "bf16"] = (
        "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"
    )
    work = gemm(device, precision, _GPU_SIZE)
    watch = DeviceStopwatch(device)
    watch.seconds(work, 3)
    count = max(1, math.ceil(window_s * 10 / watch.seconds(work, 10)))
    stream = torch.cuda.current_stream(device)

    def mark() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    windows: list[SoakWindow] = []
    under_way: deque[tuple[torch.cuda.Event, DeviceSample | None]] = deque()
    first = last = mark()

    def finish_oldest() -> None:
        nonlocal last
        end, sample = under_way.popleft()
        end.synchronize()
        taken_s = last.elapsed_time(end) / 1e3
        tflops = gemm_tflops(_GPU_SIZE, taken_s / count)
        windows.append(_window(first.elapsed_time(end) / 1e3, tflops, sample))
        last = end

    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for _ in range(count):
            work()
        end = mark()
        # The window before this one is running now, or this one itself.
        under_way.append((end, read()))
        if len(under_way) > 2:
            finish_oldest()
    while under_way:
        finish_oldest()
    return Soak(precision, _GPU_SIZE, tuple(windows))


def _soak_cpu(device: torch.device, seconds: float, window_s: float, read: Reading) -> Soak:
    work = gemm(device, "fp32", _CPU_SIZE)
    work()
    windows: list[SoakWindow] = []
    begin = last = time.perf_counter()
    while last - begin < seconds:
        count = 0
        while True:
            work()
            count += 1
            now = time.perf_counter()
            if now - last >= window_s:
                break
        windows.append(_window(now - begin, gemm_tflops(_CPU_SIZE, (now - last) / count), read()))
        last = time.perf_counter()
    return Soak("fp32", _CPU_SIZE, tuple(windows))


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
