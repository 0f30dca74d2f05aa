"""How fast devices are beside one another: the shares of ``strategy=heterogeneous``.

All devices run forward and backward at the same time, in blocks that begin together. What a host
shares slows all of a block, and cancels in its ratios. Two devices count as equal unless Student's
t interval of their blocks' log ratios excludes 1, at a level corrected for the number of pairs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytorch_lightning as pl
import torch

from scalewise.train.torch_internals import copy_all

CONFIDENCE = 0.999
"""Of all intervals together. Splits that noise made are never averaged with others, and cost every
run of a configuration its repeats; devices that differ do so by far more."""

BLOCKS = 12
_WARMUP_STEPS = 3
_LEAST_BLOCK_S = 0.1
_LEAST_STEPS = 2


def probe_samples_per_s(
    module: pl.LightningModule,
    batch: Any,
    samples: int,
    device: torch.device,
    forward_context: Callable[[], AbstractContextManager[None]],
) -> list[float]:
    """Samples/s of forward and backward of ``batch`` on this device, block by block.

    Of the fastest step of each block: other processes only ever make steps longer, and which device
    they slow now says nothing of the rest of the run.

    Nothing of the module changes: gradients are dropped, buffers and random numbers restored.
    Every rank calls it at once, with ``samples`` in its ``batch``.
    """
    kept = [buffer.clone() for buffer in module.buffers()]
    gate = torch.zeros(1, device=device)

    def run(least_steps: int, least_s: float) -> float:
        torch.distributed.all_reduce(gate)
        _wait(device)
        edges = [time.perf_counter()]
        while len(edges) <= least_steps or edges[-1] - edges[0] < least_s:
            with forward_context():
                output: Any = module.training_step(batch, len(edges) - 1)
            (output["loss"] if isinstance(output, Mapping) else output).backward()
            module.zero_grad()
            _wait(device)
            edges.append(time.perf_counter())
        return samples / min(after - before for before, after in pairwise(edges))

    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        run(_WARMUP_STEPS, 0.0)
        rates = [run(_LEAST_STEPS, _LEAST_BLOCK_S) for _ in range(BLOCKS)]
    if kept:
        copy_all(list(module.buffers()), kept)
    return rates


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Speeds:
    """What the blocks of all devices come to, rank by rank."""

    samples_per_s: tuple[float, ...]
    """Geometric means over blocks."""
    ratios: tuple[tuple[float, float, float], ...]
    """That over the fastest device's, with the ends of its interval."""
    weights: tuple[float, ...]
    """In what proportion to share out a batch: the same for devices not shown to differ."""


def compare(rates: Sequence[Sequence[float]]) -> Speeds:
    """Compare devices by their samples/s, shape ``[ranks, blocks]``; two blocks or more.

    From the fastest on, each device joins those before it, unless it is shown to be slower than
    the first of them. The devices of a group weigh as their mean.
    """
    logs = [[math.log(rate) for rate in one] for one in rates]
    means = [math.fsum(one) / len(one) for one in logs]
    pairs = max(1, len(logs) * (len(logs) - 1) // 2)
    order = sorted(range(len(logs)), key=means.__getitem__, reverse=True)
    groups: list[list[int]] = []
    for rank in order:
        if groups and _interval(logs[rank], logs[groups[-1][0]], pairs)[2] >= 0:
            groups[-1].append(rank)
        else:
            groups.append([rank])
    weights = {
        rank: math.exp(math.fsum(means[i] for i in group) / len(group))
        for group in groups
        for rank in group
    }
    ratios = [_interval(one, logs[order[0]], pairs) for one in logs]
    return Speeds(
        tuple(map(math.exp, means)),
        tuple((math.exp(a), math.exp(b), math.exp(c)) for a, b, c in ratios),
        tuple(weights[rank] for rank in range(len(logs))),
    )


def _interval(
    above: Sequence[float], below: Sequence[float], pairs: int
) -> tuple[float, float, float]:
    """Mean of the differences, and the ends of its interval."""
    from scipy.special import stdtrit  # of all ranks these alone need it

    gaps = [a - b for a, b in zip(above, below, strict=True)]
    n, mean = len(gaps), math.fsum(gaps) / len(gaps)
    sd = math.sqrt(math.fsum((gap - mean) ** 2 for gap in gaps) / (n - 1))
    tail = (1 - CONFIDENCE) / (2 * pairs)
    half = float(stdtrit(n - 1, 1 - tail)) * sd / math.sqrt(n)
    return mean, mean - half, mean + half
