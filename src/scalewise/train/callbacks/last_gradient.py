"""When the last gradient of a backward pass is there, without a hook in DDP's reduction.

A communication hook in Python stands in the way of every bucket, and a step of 2 ms may feel it
(``benchmarks/measuring_cost.py``). DDP's own reduction needs none: it starts to reduce the last
bucket when the last parameter's gradient has been accumulated, so a hook on that one parameter
tells the same moment. Which one it is, the first two reduced passes show; until then every
parameter is listened to.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from scalewise.train.callbacks.traffic import GradientTraffic

_LEARNED_AFTER = 2
"""Passes: DDP puts its buckets into the order of the first one, and keeps them from the second."""
_SIZED_AFTER = 4
"""Passes: until its third one DDP tells of the one bucket that it began with."""


class LastGradient:
    """Calls ``mark`` when the last gradient of a reduced backward pass is ready.

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
        sizes = self._bucket_bytes() if self._passes >= _LEARNED_AFTER else []
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

    def _bucket_bytes(self) -> list[int]:
        seen = self._model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        for name in ("rebuilt_bucket_sizes", "bucket_sizes", "initial_bucket_sizes"):
            sizes = [int(size) for size in str(seen.get(name, "")).split(",") if size.strip()]
            if sizes:
                return sizes
        return []
