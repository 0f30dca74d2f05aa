"""What DDP's communication hook sees go by: how often gradients are reduced, and how many bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from scalewise.records import CommunicationRecord

CommHook = Callable[[Any, GradBucket], torch.futures.Future[Tensor]]


@dataclass(frozen=True)
class GradientHook:
    """How the gradients of a bucket are averaged over the ranks."""

    hook: CommHook
    state: Any
    payload_bytes: Callable[[GradBucket], int]
    """Bytes that ``hook`` handed to the collective for this bucket; asked right after it."""


PLAIN = GradientHook(allreduce_hook, None, lambda bucket: bucket.buffer().nbytes)
"""What DDP does without any hook: an all-reduce of the bucket as it is."""


class GradientTraffic:
    """Counts the reductions of a rank, warm-up apart."""

    def __init__(self) -> None:
        self.bucket_bytes: int | None = None
        """Bytes of all gradients of one reduction, before any compression."""
        self.buckets: int | None = None
        self._current: list[int] = []
        self._seen = 0
        self._rounds = 0
        self._payload_bytes = 0
        self._unsized = 0

    def begin(self) -> None:
        """The timed steps start: forget what warm-up has sent."""
        self._rounds = self._payload_bytes = self._unsized = 0

    def size(self, all_bytes: int, buckets: int) -> None:
        """What one reduction sends, where it is not counted bucket by bucket."""
        self.bucket_bytes, self.buckets = all_bytes, buckets
        unsized, self._unsized = self._unsized, 0
        self.repeat(unsized)

    def count(self, bucket: GradBucket, payload_bytes: int) -> None:
        """One bucket is on its way."""
        self._payload_bytes += payload_bytes
        if self._seen < 2:
            self._learn(bucket)
        if bucket.is_last():
            self._rounds += 1
            self._seen += 1

    def repeat(self, times: int = 1) -> None:
        """All buckets were sent once more, where no hook sees them one by one."""
        if self.bucket_bytes is None:
            self._unsized += times
        else:
            self._rounds += times
            self._payload_bytes += times * self.bucket_bytes

    def _learn(self, bucket: GradBucket) -> None:
        # The first reduction comes in one order of buckets, later ones in another: the second
        # is what lasts.
        self._current.append(bucket.buffer().nbytes)
        if bucket.is_last():
            self.bucket_bytes, self.buckets = sum(self._current), len(self._current)
            self._current.clear()

    def record(self, timed_steps: int) -> CommunicationRecord | None:
        """Averages over ``timed_steps`` optimizer steps; None where nothing was reduced."""
        if not timed_steps or not self._rounds:
            return None
        return CommunicationRecord(
            "gradients", self._rounds / timed_steps, self._payload_bytes / timed_steps
        )
