"""Replicas without DDP around them: nothing is sent while gradients are computed."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalewise.records import CommunicationRecord


@functools.cache
def unwrapped_replicas() -> type[Any]:
    """Lightning's strategy of as many processes, with the bare module on each of them."""
    from pytorch_lightning.strategies import DDPStrategy
    from torch.nn import Module

    class UnwrappedReplicas(DDPStrategy):
        def configure_ddp(self) -> None:
            assert self.model is not None
            self.model = self._setup_model(self.model)

        def _setup_model(self, model: Module) -> Any:
            return model

        @contextmanager
        def block_backward_sync(self) -> Iterator[None]:
            yield  # there is no reduction in a backward that could be put off

        def communication(self, timed_steps: int) -> CommunicationRecord | None:
            """What was sent in the last ``timed_steps`` optimizer steps; None for nothing."""
            return None

    return UnwrappedReplicas
