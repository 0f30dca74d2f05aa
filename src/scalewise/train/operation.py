"""Cells that only run forward: an operation instead of a model, results instead of a loss."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from scalewise.train.callbacks.recorder import CellRecorder
from scalewise.train.lean import CheapHookNames, LeanSteps


class OperationModule(CheapHookNames, pl.LightningModule):
    """Runs an operation once a step. Nothing is learnt, so there is nothing to optimize or score.

    Args:
        network: a :class:`scalewise.operations.contract.Operation`.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        if isinstance(batch, Tensor):
            return batch.to(device, non_blocking=True)
        return tuple(self.transfer_batch_to_device(part, device, 0) for part in batch)

    @torch.no_grad()
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        result = self.network(batch)
        assert isinstance(result, Tensor)
        return result

    def configure_optimizers(self) -> None:
        return None

    def on_fit_start(self) -> None:
        # Lightning puts a dummy in the optimizer's place; the records are to say that none ran.
        self.trainer.strategy.optimizers = []


class ForwardSteps(LeanSteps):
    """A step is one forward pass. It counts as Lightning counts optimizer steps."""

    def step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """The operation on one batch that is on the device. Its result is not kept."""
        progress = self.optim_progress.optimizer.step
        progress.increment_ready()
        self.trainer.strategy.training_step(batch, batch_idx)
        progress.increment_completed()
        return {}


def run_forward_only(trainer: pl.Trainer, recorder: CellRecorder) -> None:
    """Make ``trainer.fit`` a row of forward passes."""
    loop: Any = trainer.fit_loop.epoch_loop
    loop._broadcast_sigterm_tensor = lambda: None  # see train.lean.trim
    steps = ForwardSteps(trainer, recorder)
    loop.automatic_optimization = steps
    loop.advance = steps.advance
    loop.update_lr_schedulers = lambda interval, update_plateau_schedulers: None
