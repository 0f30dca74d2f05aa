"""Copies inside a device, between a GPU and its host, and between each pair of GPUs.

Between GPUs they are copies by rank 0, all else being idle; CUDA goes straight from one to the
other where it may, else through host memory. A copy is compared with what it must have brought: a
counting pattern, never zeros, because a page of zeros may not exist in memory at all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from scalewise.doctor.compute import gb_per_s, measure, stopwatch, stream_stopwatch
from scalewise.doctor.host_facts import pcie_link
from scalewise.doctor.plan import Budget, RankRecord
from scalewise.gpu import open_nvml
from scalewise.records import CopyKind, CopyRate, PairRate
from scalewise.train import Team

STAGING: tuple[CopyKind, ...] = ("h2d_pinned", "d2h_pinned", "h2d_pageable", "d2h_pageable")

_HOST = torch.device("cpu")

_PCIE_S = 0.05
"""Copies under way while the PCIe link is read."""


class Copy:
    """A copy from one memory to another, between two buffers of its own."""

    def __init__(
        self, source: torch.device, target: torch.device, byte_count: int, pinned: bool = False
    ) -> None:
        """``pinned``: the buffer of the host is page-locked, so that a copy is asynchronous."""
        sent = _pattern(byte_count, source)
        ends = sent, torch.full_like(sent, -1, device=target)
        self._sent, self._received = (
            end.pin_memory() if pinned and not end.is_cuda else end for end in ends
        )
        self._wait()

    def run(self) -> None:
        """Pageable memory goes through the driver's own pinned buffer while the host waits."""
        self._received.copy_(self._sent, non_blocking=True)

    def arrived(self) -> bool:
        """Whether the target holds what was sent, compared on the target itself."""
        self._wait()
        expected = _pattern(4 * self._received.numel(), self._received.device)
        return torch.equal(self._received, expected)

    def _wait(self) -> None:
        for end in (self._sent, self._received):
            if end.is_cuda:
                torch.cuda.synchronize(end.device)


def _pattern(byte_count: int, device: torch.device) -> Tensor:
    """int32 values 0, 1, 2, ...: each place has its own, so that a misplaced byte shows."""
    return torch.arange(byte_count // 4, dtype=torch.int32, device=device)


def copy_rate(
    kind: CopyKind,
    device: torch.device,
    byte_count: int,
    budget_s: float,
    meet: Callable[[], object] | None = None,
) -> CopyRate:
    """Time copies of that kind, and compare what arrived.

    Ranks that copy together ``meet`` once their buffers are filled, which takes the host longer
    than the copies; one that cannot fill its own comes all the same. A copy inside one memory
    counts the bytes read plus those written.
    """
    ends = {"device": (device, device), "host": (_HOST, _HOST),
            "h2d": (_HOST, device), "d2h": (device, _HOST)}  # fmt: skip
    source, target = ends[kind.partition("_")[0]]
    try:
        copy = Copy(source, target, byte_count, kind.endswith("pinned"))
    finally:
        if meet is not None:
            meet()
    timing = measure(stopwatch(device), copy.run, budget_s)
    rate = gb_per_s(byte_count * (1 + (source == target)), timing)
    return CopyRate(kind, meet is not None, byte_count, timing, rate, copy.arrived())


def host_copies(
    record: RankRecord, team: Team, budget: Budget, uuid: str | None, device: torch.device
) -> None:
    """Copies between the host and every GPU: a stage that every rank has to run.

    Every kind is measured in turns; then, where there are several ranks, the pinned ones at once.
    ``uuid`` is NVML's name of ``device``, whose PCIe link is read.
    """
    size, limit_s = budget.staging_bytes, budget.staging_s
    for turn in range(team.size):
        if turn == team.rank:
            for kind in STAGING:
                alone = partial(copy_rate, kind, device, size, limit_s)
                record.add("copies", f"{kind} alone", alone)
            if uuid is not None:
                record.attempt("PCIe link", partial(_read_pcie, record, device, size, uuid))
        team.barrier()
    for kind in STAGING[:2] if team.size > 1 else ():  # pinned
        together = partial(copy_rate, kind, device, size, limit_s, team.barrier)
        record.add("copies", f"{kind} together", together)


def _read_pcie(record: RankRecord, device: torch.device, byte_count: int, uuid: str) -> None:
    with open_nvml() as nvml:  # takes longer than the copies, so it comes first
        gpu = next(gpu for gpu in nvml.devices() if gpu.uuid == uuid)
        copy, watch = Copy(_HOST, device, byte_count, pinned=True), stopwatch(device)
        watch(copy.run, 1)
        for _ in range(max(1, min(500, int(_PCIE_S / watch(copy.run, 1))))):
            copy.run()
        try:
            record.note(pcie=pcie_link(nvml, gpu))
        finally:
            torch.cuda.synchronize(device)


def cuda_pair(first: int, second: int, byte_count: int, budget_s: float) -> PairRate:
    """Copies between two GPUs that this process sees, by their index."""
    there = _BetweenGpus(first, second, byte_count)
    back = _BetweenGpus(second, first, byte_count)

    def both_ways() -> None:
        there.run()
        back.run()

    forward = measure(stream_stopwatch(there.stream), there.run, budget_s)
    backward = measure(stream_stopwatch(back.stream), back.run, budget_s)
    both = measure(stream_stopwatch(there.stream, back.stream), both_ways, budget_s)
    can = torch.cuda.can_device_access_peer
    direct = bool(can(first, second) and can(second, first))
    rates = (gb_per_s(byte_count, forward), gb_per_s(byte_count, backward))
    return PairRate(
        "cuda copy", first, second, byte_count, direct, forward, backward, both,
        *rates, gb_per_s(2 * byte_count, both), there.arrived() and back.arrived(),
    )  # fmt: skip


class _BetweenGpus(Copy):
    """Copies in one direction, with streams of its own on both GPUs.

    PyTorch copies in the source's current stream, and makes that and the target's current stream
    wait for each other: two directions in the same two streams would take turns.
    """

    def __init__(self, source: int, target: int, byte_count: int) -> None:
        here, there = torch.device("cuda", source), torch.device("cuda", target)
        super().__init__(here, there, byte_count)
        self.stream, self._target_stream = torch.cuda.Stream(here), torch.cuda.Stream(there)

    def run(self) -> None:
        with torch.cuda.stream(self._target_stream), torch.cuda.stream(self.stream):
            super().run()
