"""What it costs to launch work on a device: a call, a round trip, a kernel of a CUDA graph."""

from __future__ import annotations

import time

import torch

from scalewise.measure.doctor_timing import (
    DeviceStopwatch,
    HostStopwatch,
    Work,
    measure,
    to_timing,
)
from scalewise.records.doctor_rates import LaunchCost

_CHAIN = 200
"""Kernels in the CUDA graph of many."""


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
