"""What ``scalewise doctor`` timed on a host: collectives, copies, matrix products, launches.

Bandwidths are in 10^9 bytes a second, sizes in bytes, rates in 10^12 operations a second.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast"]
Backend = Literal["nccl", "gloo"]


@dataclass(frozen=True)
class Timing:
    """Repetitions of one operation after its warm-up."""

    samples_us: tuple[float, ...]
    """Microseconds of one operation: each is the mean of ``iterations`` back to back."""
    iterations: int

    def __post_init__(self) -> None:
        if not self.samples_us or min(self.samples_us) <= 0:
            raise ValueError(
                f"samples_us: found {list(self.samples_us)}; allowed: one or more, each above 0"
            )

    @property
    def median_us(self) -> float:
        return statistics.median(self.samples_us)

    @property
    def spread_percent(self) -> float:
        """From the fastest to the slowest repetition, as a share of the median."""
        return 100 * (max(self.samples_us) - min(self.samples_us)) / self.median_us


@dataclass(frozen=True)
class CollectiveRate:
    """One collective at one size, timed by its slowest rank."""

    backend: Backend
    collective: Collective
    ranks: int
    bytes: int
    """All-gather: of the whole output. Reduce-scatter: of the whole input."""
    timing: Timing
    algorithm_gb_s: float
    """``bytes`` over the median time."""
    bus_gb_s: float
    """What each link carried if it was used evenly: comparable over numbers of ranks."""
    correct: bool
    """Whether every rank received what it should."""


@dataclass(frozen=True)
class PairRate:
    """Point to point between two ranks, nothing else running."""

    transport: Literal["cuda copy", "gloo"]
    first: int
    second: int
    bytes: int
    direct: bool | None
    """Whether CUDA lets one device reach the other's memory; None for gloo."""
    forward: Timing
    """First to second."""
    backward: Timing
    both: Timing
    """``bytes`` each way at once."""
    forward_gb_s: float
    backward_gb_s: float
    both_gb_s: float
    """Both directions together."""
    correct: bool
    latency_us: float | None = None
    """Half of a round trip of 8 bytes; gloo only."""


@dataclass(frozen=True)
class GemmRate:
    """Product of two random square matrices, on all devices at once."""

    precision: Literal["fp32", "tf32", "bf16", "fp16", "fp8"]
    size: int
    """Rows and columns."""
    timing: Timing
    tflops: float


@dataclass(frozen=True)
class CopyRate:
    """A copy from one memory to another, or inside one."""

    kind: Literal["device", "h2d_pinned", "d2h_pinned", "h2d_pageable", "d2h_pageable", "host"]
    """``device`` and ``host`` copy within one memory and count the bytes read and written."""
    together: bool
    """Whether all ranks copied at once; else this one had the host to itself."""
    bytes: int
    """Of the buffer."""
    timing: Timing
    gb_s: float
    correct: bool


@dataclass(frozen=True)
class LaunchCost:
    """What one operation costs before it has done anything: an addition to one element."""

    kind: Literal["enqueue", "stream", "graph_kernel", "graph_replay", "round_trip"]
    """Per operation: ``enqueue`` on the host, ``stream`` in a stream fed by the host,
    ``graph_kernel`` inside a CUDA graph of many, ``graph_replay`` of a graph of one,
    ``round_trip`` until the host knows that it is done."""
    timing: Timing


@dataclass(frozen=True)
class SoakWindow:
    """A stretch of the endurance run."""

    at_s: float
    """Since its begin."""
    tflops: float
    sm_clock_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    throttle_reasons: tuple[str, ...] | None
    """None where they could not be read."""


@dataclass(frozen=True)
class Soak:
    """Products of matrices without a pause."""

    precision: Literal["fp32", "bf16"]
    size: int
    windows: tuple[SoakWindow, ...]
