"""When the last bucket of gradients is ready, and how much of them is sent.

DDP takes one communication hook. That of one of our strategies is wrapped; else none is needed,
also where the user brings one (see :class:`GradientWatch`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from scalewise.records import CommunicationRecord
from scalewise.train.torch_internals import GradBucket, bucket_bytes

if TYPE_CHECKING:
    import pytorch_lightning as pl


CommHook = Callable[[Any, GradBucket], torch.futures.Future[Tensor]]
_LEARNED_AFTER = 2
"""Passes: DDP puts its buckets into the order of the first one, and keeps them from the second."""
_SIZED_AFTER = 4
"""Passes: until its third one DDP tells of the one bucket that it began with."""


@dataclass(frozen=True)
class GradientHook:
    """How the gradients of a bucket are averaged over the ranks."""

    hook: CommHook
    state: Any
    payload_bytes: Callable[[GradBucket], int]
    """Bytes that ``hook`` handed to the collective for this bucket; asked right after it."""


class GradientWatch:
    """Calls ``ready`` when the last gradient of a reduced pass is ready, and counts the bytes.

    It is called on autograd's thread: in the first two passes more often, and the last call counts.

    A communication hook in Python costs each bucket time. DDP starts to reduce the last bucket when
    the last parameter's gradient has been accumulated, so a hook on that one tells the same moment.
    Until the first two reduced passes have shown which one it is, every parameter is listened to.
    """

    def __init__(self, ready: Callable[[], None]) -> None:
        self.bucket_bytes: int | None = None
        """Bytes of all gradients of one reduction, before any compression."""
        self.buckets: int | None = None
        self._ready = ready
        self._rounds = 0  # since warm-up
        self._payload_bytes: int | None = None
        """Counted by the hook since warm-up; None where none is wrapped."""
        self._current: list[int] = []
        self._model: DistributedDataParallel | None = None
        self._latest: Tensor | None = None
        self._passes = 0
        self._handles: list[RemovableHandle] = []

    def watch(self, model: DistributedDataParallel, hook: GradientHook | None) -> None:
        """Listen to a wrapped model, through ``hook`` where the strategy brings one."""
        if hook is not None:
            self._payload_bytes = 0
            model.register_comm_hook(hook.state, self._listening(hook))
            return
        self._model = model
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._heard)  # type: ignore[no-untyped-call]
            for parameter in model.parameters()
            if parameter.requires_grad
        ]

    def leave(self) -> None:
        for handle in self._handles:
            handle.remove()

    def begin(self) -> None:
        """The timed steps start: forget what warm-up has sent."""
        self._rounds = 0
        if self._payload_bytes is not None:
            self._payload_bytes = 0

    def repeat(self, times: int = 1) -> None:
        """All buckets were sent once more, where no hook sees them one by one."""
        self._rounds += times

    def size(self, model: DistributedDataParallel) -> None:
        """Learn how much one reduction of ``model`` sends, if DDP knows by now."""
        sizes = bucket_bytes(model)
        if sizes:
            self.bucket_bytes, self.buckets = sum(sizes), len(sizes)

    def after_backward(self) -> None:
        """A backward pass has ended; costs nothing once the last parameter is known."""
        if self._latest is None or self._passes == _SIZED_AFTER:
            return
        latest, self._latest = self._latest, None
        self._passes += 1
        if self._passes <= _LEARNED_AFTER:
            self.repeat()
        if self._passes == _LEARNED_AFTER:
            self.leave()
            last = latest.register_post_accumulate_grad_hook(self._heard)  # type: ignore[no-untyped-call]
            self._handles = [last]
        if self._passes >= _LEARNED_AFTER:
            assert self._model is not None
            self.size(self._model)

    def record(self, timed_steps: int) -> CommunicationRecord | None:
        """Averages over ``timed_steps`` optimizer steps; None where nothing listened.

        Nothing was sent where DDP's reducer never ran: gradients came around ``loss.backward()``.
        """
        listens = self._model is not None or self._payload_bytes is not None
        ran = self._rounds or self._passes or self._latest is not None
        if timed_steps > 0 and listens and not ran:
            return CommunicationRecord("gradients", 0.0, 0.0)
        if not timed_steps or not self._rounds or self.bucket_bytes is None:
            return None
        payload_bytes = self._payload_bytes
        if payload_bytes is None:
            payload_bytes = self._rounds * self.bucket_bytes
        return CommunicationRecord(
            "gradients", self._rounds / timed_steps, payload_bytes / timed_steps
        )

    def _heard(self, parameter: Tensor) -> None:
        """A parameter has its gradient; the last one, once that is the only one listened to."""
        assert self._model is not None
        # Not where gradients are only gathered (no_sync): nothing is reduced after this pass.
        if self._model.require_backward_grad_sync:
            self._ready()
            self._latest = parameter
            if self._passes >= _LEARNED_AFTER:
                self.repeat()

    def _listening(self, hook: GradientHook) -> CommHook:
        """``hook``, counted, and a word when the last bucket of a backward pass is ready."""

        def listen(state: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
            if bucket.is_last():
                self._ready()
            future = hook.hook(state, bucket)
            assert self._payload_bytes is not None
            self._payload_bytes += hook.payload_bytes(bucket)
            learns = self._passes < _LEARNED_AFTER
            if learns:
                self._current.append(bucket.buffer().nbytes)
            if bucket.is_last():
                self._rounds += 1
                self._passes += learns
                if learns:
                    self.bucket_bytes, self.buckets = sum(self._current), len(self._current)
                    self._current.clear()
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
    return {
        "exposed_comm_ms": (
            f"{type(strategy).__name__} reduces gradients where no hook can see it"
            if any(p.requires_grad for p in trainer.lightning_module.parameters())
            else "nothing has gradients, so none are reduced"
        )
    }
