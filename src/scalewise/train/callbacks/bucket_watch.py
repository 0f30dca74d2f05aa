"""Hearing that the last bucket of gradients is ready, whoever reduces them.

DDP takes one communication hook. Where the user or the strategy brings one, it is wrapped; where
nobody does, none is needed (see :mod:`~scalewise.train.callbacks.last_gradient`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy, Strategy
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from scalewise.train.callbacks.last_gradient import LastGradient
from scalewise.train.callbacks.traffic import PLAIN, CommHook, GradientHook, GradientTraffic


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

    def wrap_user_hook(self, strategy: Strategy) -> None:
        """Before Lightning wraps the model, when it registers the hook that the user chose."""
        if isinstance(strategy, DDPStrategy) and self._watches:
            user_hook = strategy._ddp_comm_hook
            if user_hook is not None:
                own = GradientHook(user_hook, None, PLAIN.payload_bytes)
                strategy._ddp_comm_hook = self._listening(own)

    def watch(self, model: DistributedDataParallel, strategy: Strategy) -> LastGradient | None:
        """Listen to a wrapped model; returns what is to be told of each backward, if anything."""
        # Lightning hands a user's hook to DDP on GPUs only.
        on_gpu = strategy.root_device.type == "cuda"
        if getattr(strategy, "_ddp_comm_hook", None) is not None and on_gpu:
            return None
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
