"""What the ranks of an examination agree on.

A control group (gloo, in host memory) carries barriers and small numbers, so that nothing of it
runs on a GPU that is being timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from scalewise.train.rendezvous import join

_TIMEOUT_S = 45
"""Ranks keep together within seconds: after this long, one of them is gone."""


class Team:
    """The ranks; alone, every question is answered by oneself."""

    def __init__(self, rank: int, size: int, timeout_s: float = _TIMEOUT_S) -> None:
        """Meet the others; later none waits longer than ``timeout_s`` for one that does not come.

        Raises torch's errors where that fails.
        """
        self.rank = rank
        self.size = size
        self._control: dist.ProcessGroup | None = None
        if size > 1:
            join(rank, size, "gloo", timedelta(seconds=timeout_s))
            self._control = dist.group.WORLD

    @property
    def gloo(self) -> dist.ProcessGroup:
        """A group over host memory. Raises RuntimeError for a rank alone."""
        if self._control is None:
            raise RuntimeError("it needs two devices")
        return self._control

    def nccl(self) -> dist.ProcessGroup:
        """A new group over the ranks' GPUs, connected; every rank must call it."""
        group: dist.ProcessGroup = dist.new_group(
            backend="nccl", timeout=timedelta(seconds=_TIMEOUT_S)
        )
        # NCCL connects on first use, which takes seconds: not on anybody's time.
        dist.all_reduce(torch.ones(1, device="cuda"), group=group)
        torch.cuda.synchronize()
        return group

    def barrier(self) -> None:
        if self._control is not None:
            dist.barrier(group=self._control)

    def largest(self, values: Sequence[float]) -> list[float]:
        """The largest over all ranks, place by place: what the slowest rank took."""
        tensor = torch.tensor(values, dtype=torch.float64)
        if self._control is not None:
            dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._control)
        return [float(value) for value in tensor]

    def all_agree(self, mine: bool) -> bool:
        """Whether it is so on every rank."""
        return self.largest([0.0 if mine else 1.0])[0] == 0.0
