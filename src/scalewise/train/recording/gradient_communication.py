"""When the last bucket of gradients is ready, and how much of them is sent.

DDP takes one communication hook. That of one of our strategies is wrapped; else none is needed,
also where the user brings one (see :class:`LastGradient`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import Strategy
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from scalewise.records import CommunicationRecord
from scalewise.train.torch_internals import GradBucket, bucket_bytes

CommHook = Callable[[Any, GradBucket], torch.futures.Future[Tensor]]


@dataclass(frozen=True)
class GradientHook:
    """How the gradients of a bucket are averaged over the ranks."""

    hook: CommHook
    state: Any
    payload_bytes: Callable[[GradBucket], int]
    """Bytes that ``hook`` handed to the collective for this bucket; asked right after it."""


class GradientTraffic:
    """Counts the reductions of a rank and their bytes, warm-up apart."""

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
        """Learn how much one reduction sends, where it is not counted bucket by bucket."""
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


_LEARNED_AFTER = 2
"""Passes: DDP puts its buckets into the order of the first one, and keeps them from the second."""
_SIZED_AFTER = 4
"""Passes: until its third one DDP tells of the one bucket that it began with."""


class LastGradient:
    """Calls ``mark`` when the last gradient of a reduced backward pass is ready.

    A communication hook in Python stands in the way of every bucket, and a step of 2 ms may feel
    it (``benchmarks/measuring_cost.py``). DDP's own reduction needs none: it starts to reduce the
    last bucket when the last parameter's gradient has been accumulated, so a hook on that one
    parameter tells the same moment. The first two reduced passes show which one it is; until then
    every parameter is listened to.

    Args:
        model: the replica, wrapped.
        mark: called on autograd's thread; in the first two passes once a parameter.
        traffic: told of every reduced pass, and of the buckets once they are known.
    """

    def __init__(
        self, model: DistributedDataParallel, mark: Callable[[], None], traffic: GradientTraffic
    ) -> None:
        self._model = model
        self._mark = mark
        self._traffic = traffic
        self._latest: Tensor | None = None
        self._passes = 0
        self._handles: list[RemovableHandle] = [
            parameter.register_post_accumulate_grad_hook(self._any)  # type: ignore[no-untyped-call]
            for parameter in model.parameters()
            if parameter.requires_grad
        ]

    def after_backward(self) -> None:
        """A backward pass has ended; costs nothing once the last parameter is known."""
        if self._latest is None or self._passes == _SIZED_AFTER:
            return
        latest, self._latest = self._latest, None
        self._passes += 1
        if self._passes <= _LEARNED_AFTER:
            self._traffic.repeat()
        if self._passes == _LEARNED_AFTER:
            self._listen_to(latest)
        sizes = bucket_bytes(self._model) if self._passes >= _LEARNED_AFTER else []
        if sizes:
            self._traffic.size(sum(sizes), len(sizes))

    def _listen_to(self, parameter: Tensor) -> None:
        """From here on to this one only."""
        for handle in self._handles:
            handle.remove()
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._last)  # type: ignore[no-untyped-call]
        ]

    def _any(self, parameter: Tensor) -> None:
        if self._model.require_backward_grad_sync:
            self._latest = parameter
            self._mark()

    def _last(self, parameter: Tensor) -> None:
        # Not where gradients are only gathered (no_sync): nothing is reduced after this pass.
        if self._model.require_backward_grad_sync:
            self._mark()
            self._latest = parameter
            self._traffic.repeat()


class BucketWatch:
    """Tells ``ready`` and ``traffic`` of the gradients that DDP reduces.

    Args:
        ready: called when the last bucket of a backward pass is ready, on autograd's thread; in
            the first two passes more often, of which the last call is the one.
        traffic: counts what is sent.
        watches: without, hooks are registered and left alone, and nobody is told anything.
    """

    def __init__(
        self, ready: Callable[[], None], traffic: GradientTraffic, watches: bool = True
    ) -> None:
        self._ready = ready
        self._traffic = traffic
        self._watches = watches

    def watch(self, model: DistributedDataParallel, strategy: Strategy) -> LastGradient | None:
        """Listen to a wrapped model; returns what is to be told of each backward, if anything."""
        own: GradientHook | None = getattr(strategy, "gradient_hook", None)
        if own is not None:
            hook = self._listening(own) if self._watches else own.hook
            model.register_comm_hook(own.state, hook)
            return None
        return LastGradient(model, self._ready, self._traffic) if self._watches else None

    def _listening(self, hook: GradientHook) -> CommHook:
        """``hook``, counted, and a word when the last bucket of a backward pass is ready."""

        def listen(state: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
            if bucket.is_last():
                self._ready()
            future = hook.hook(state, bucket)
            self._traffic.count(bucket, hook.payload_bytes(bucket))
            return future

        # DDP compares annotations with its own classes, and ours are strings here.
        listen.__annotations__.clear()
        return listen


def hidden_reductions(trainer: pl.Trainer) -> Mapping[str, str]:
    """Why no gradients are seen being reduced where DDP does not do it; empty if none can be."""
    strategy = trainer.strategy
    # A strategy of ours that divides the model knows better.
    if trainer.world_size == 1 or hasattr(strategy, "communication"):
        return {}
    reasons: Mapping[str, str] | None = getattr(strategy, "hidden", None)
    if reasons is not None:
        return reasons
    learns = any(p.requires_grad for p in trainer.lightning_module.parameters())
    return {
        "exposed_comm_ms": (
            f"{type(strategy).__name__} reduces gradients where no hook can see it"
            if learns
            else "nothing has gradients, so none are reduced"
        )
    }
