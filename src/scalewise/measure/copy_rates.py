"""How fast bytes move inside a device's memory, and between a GPU and its host.

What is copied is a counting pattern, never zeros: a page of zeros may not exist in memory at all,
and each copy is compared with what it must have brought.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from scalewise.measure.doctor_timing import DeviceStopwatch, Work, gb_per_s, measure, stopwatch
from scalewise.records.doctor_rates import CopyRate

Staging = Literal["h2d_pinned", "d2h_pinned", "h2d_pageable", "d2h_pageable"]
STAGING: tuple[Staging, ...] = ("h2d_pinned", "d2h_pinned", "h2d_pageable", "d2h_pageable")


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
