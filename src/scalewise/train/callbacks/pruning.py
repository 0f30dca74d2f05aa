"""Pruning as a Lightning callback, for a cell and for a user's own Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytorch_lightning as pl
import torch

from scalewise.optimizers.pruning import Pruner, UnprunableError
from scalewise.optimizers.pruning_schedule import PruningConfig
from scalewise.train.callbacks.footprint import zero_share
from scalewise.validation import build, to_plain


class Pruning(pl.Callback):
    """Prunes while training: ``Trainer(callbacks=[Pruning(PruningConfig("p", "magnitude"))])``.

    Its masks, scores and place in the schedule are part of the Trainer's checkpoints. Raises
    ValueError for settings out of their ranges.
    """

    def __init__(self, config: PruningConfig) -> None:
        self.config = build(PruningConfig, to_plain(config), "pruning")
        self._pruner: Pruner | None = None
        self._saved: dict[str, Any] | None = None
        """A checkpoint's, until there is an optimizer to go on with."""

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if len(trainer.optimizers) != 1:
            raise UnprunableError(
                f"pruning: found a module with {len(trainer.optimizers)} optimizers; allowed: 1"
            )
        self._pruner = Pruner(self.config, pl_module.named_parameters(), trainer.optimizers[0])
        self._go_on()

    def state_dict(self) -> dict[str, Any]:
        return {} if self._pruner is None else self._pruner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lightning restores callbacks before a fit starts, or after: both will do."""
        self._saved = state_dict
        self._go_on()

    def _go_on(self) -> None:
        if self._pruner is not None and self._saved is not None:
            self._pruner.load_state_dict(self._saved)
            self._saved = None


def pruned_share(optimizers: Sequence[torch.optim.Optimizer]) -> float | None:
    """Share of the prunable weights that are 0, 0 to 1; None where nothing prunes."""
    return zero_share([p for pruner in _pruners(optimizers) for p in pruner.parameters])


def pruning_state_bytes(optimizers: Sequence[torch.optim.Optimizer]) -> int | None:
    """Bytes of masks and scores on this rank; None where nothing prunes."""
    pruners = _pruners(optimizers)
    return sum(pruner.state_bytes() for pruner in pruners) if pruners else None


def _pruners(optimizers: Sequence[torch.optim.Optimizer]) -> list[Pruner]:
    found = (getattr(optimizer, "scalewise_pruner", None) for optimizer in optimizers)
    return [pruner for pruner in found if pruner is not None]
