"""Copies inside a device, between a GPU and its host, and between each pair of GPUs.

Between GPUs they are copies by rank 0, all else being idle; CUDA goes straight from one to the
other where it may, else through host memory. A copy is compared with what it must have brought: a
counting pattern, never zeros, because a page of zeros may not exist in memory at all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from scalewise.doctor.host_facts import pcie_link
from scalewise.doctor.plan import Budget, RankRecord
from scalewise.doctor.timing import Work, gb_per_s, measure, stopwatch, stream_stopwatch
from scalewise.gpu import open_nvml
from scalewise.records import CopyRate, PairRate
from scalewise.train import Team

Staging = Literal["h2d_pinned", "d2h_pinned", "h2d_pageable", "d2h_pageable"]

STAGING: tuple[Staging, ...] = get_args(Staging)

_PCIE_S = 0.05
"""Copies under way while the PCIe link is read."""


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

    def measure(
        self, kind: Staging, budget_s: float, meet: Callable[[], object] | None = None
    ) -> CopyRate:
        """Time copies of that kind, and compare what arrived.

        Ranks that copy together ``meet`` once their buffers are filled, which takes the host longer
        than the copies; one that cannot fill its own comes all the same.
        """
        source, target = self._ends(kind)
        try:
            torch.arange(source.numel(), out=source)
            target.fill_(-1)
            torch.cuda.synchronize(self._device)
        finally:
            if meet is not None:
                meet()
        work: Work = lambda: target.copy_(source, non_blocking=True)  # noqa: E731
        timing = measure(stopwatch(self._device), work, budget_s)
        # The stopwatch has waited for the last copy.
        correct = torch.equal(target, _pattern(self._bytes, target.device))
        rate = gb_per_s(self._bytes, timing)
        return CopyRate(kind, meet is not None, self._bytes, timing, rate, correct)

    def _ends(self, kind: Staging) -> tuple[Tensor, Tensor]:
        host = self._pinned if kind.endswith("pinned") else self._pageable
        return (host, self._on_device) if kind.startswith("h2d") else (self._on_device, host)

    def while_copying(self, look: Callable[[], object], seconds: float) -> None:
        """Call ``look`` while pinned copies of about that many seconds are under way."""
        work: Work = lambda: self._on_device.copy_(self._pinned, non_blocking=True)  # noqa: E731
        watch = stopwatch(self._device)
        watch(work, 1)
        for _ in range(max(1, min(500, int(seconds / watch(work, 1))))):
            work()
        try:
            look()
        finally:
            torch.cuda.synchronize(self._device)


def _pattern(byte_count: int, device: torch.device) -> Tensor:
    """int32 values 0, 1, 2, ...: each place has its own, so that a misplaced byte shows."""
    return torch.arange(byte_count // 4, dtype=torch.int32, device=device)


def host_copies(
    record: RankRecord, team: Team, budget: Budget, uuid: str | None, device: torch.device
) -> None:
    """Copies between the host and every GPU: a stage that every rank has to run.

    Every kind is measured in turns; then, where there are several ranks, the pinned ones at once.
    A rank whose buffers failed comes to the barriers all the same. ``uuid`` is NVML's name of
    ``device``, whose PCIe link is read.
    """
    staging = record.attempt("host staging", lambda: HostStaging(device, budget.staging_bytes))
    for turn in range(team.size):
        if turn == team.rank and staging is not None:
            for kind in STAGING:
                alone = partial(staging.measure, kind, budget.staging_s)
                record.add("copies", f"{kind} alone", alone)
            if uuid is not None:
                record.attempt("PCIe link", partial(_read_pcie, record, staging, uuid))
        team.barrier()
    for kind in STAGING[:2] if team.size > 1 else ():  # pinned
        if staging is None:
            team.barrier()
        else:
            together = partial(staging.measure, kind, budget.staging_s, team.barrier)
            record.add("copies", f"{kind} together", together)


def _read_pcie(record: RankRecord, staging: HostStaging, uuid: str) -> None:
    with open_nvml() as nvml:  # takes longer than the copies, so it comes first
        staging.while_copying(lambda: record.note(pcie=pcie_link(nvml, uuid)), _PCIE_S)


def cuda_pair(first: int, second: int, byte_count: int, budget_s: float) -> PairRate:
    """Copies between two GPUs that this process sees, by their index."""
    there = _OneWay(first, second, byte_count)
    back = _OneWay(second, first, byte_count)
    one_way, other_way = there.source_stream, back.source_stream

    def both_ways() -> None:
        there.copy()
        back.copy()

    forward = measure(stream_stopwatch(one_way), there.copy, budget_s)
    backward = measure(stream_stopwatch(other_way), back.copy, budget_s)
    both = measure(stream_stopwatch(one_way, other_way), both_ways, budget_s)
    can = torch.cuda.can_device_access_peer
    direct = bool(can(first, second) and can(second, first))
    rates = (gb_per_s(byte_count, forward), gb_per_s(byte_count, backward))
    return PairRate(
        "cuda copy", first, second, byte_count, direct, forward, backward, both,
        *rates, gb_per_s(2 * byte_count, both), there.arrived() and back.arrived(),
    )  # fmt: skip


class _OneWay:
    """Copies in one direction, with streams of its own on both GPUs.

    PyTorch copies in the source's current stream, and makes that and the target's current stream
    wait for each other: two directions in the same two streams would take turns.
    """

    def __init__(self, source: int, target: int, byte_count: int) -> None:
        here, there = torch.device("cuda", source), torch.device("cuda", target)
        self._sent = _pattern(byte_count, here)
        self._received = torch.full_like(self._sent, -1, device=there)
        self.source_stream = torch.cuda.Stream(here)
        self._target_stream = torch.cuda.Stream(there)
        self._wait()

    def copy(self) -> None:
        with torch.cuda.stream(self._target_stream), torch.cuda.stream(self.source_stream):
            self._received.copy_(self._sent, non_blocking=True)

    def arrived(self) -> bool:
        """Whether the target holds what was sent, compared on the target itself."""
        self._wait()
        expected = _pattern(4 * self._received.numel(), self._received.device)
        return torch.equal(self._received, expected)

    def _wait(self) -> None:
        for end in (self._sent, self._received):
            torch.cuda.synchronize(end.device)
