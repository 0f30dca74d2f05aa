"""Cells composed from the shipped configuration, small Trainers, and a module."""

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn import functional

from fakes.requests import composed
from scalewise.config import CellConfig, build_cell, without_absent_groups


def composed_cell(*overrides: str) -> CellConfig:
    """The cell of ``train.py`` with these overrides. Raises ConfigError."""
    return build_cell(without_absent_groups(composed(*overrides)))


def small_trainer(**options: Any) -> pl.Trainer:
    """A Trainer on one CPU that logs, saves and shows nothing unless told to."""
    quiet = {
        "accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    return pl.Trainer(**{**quiet, **options})


class LateLayers(pl.LightningModule):
    """A user's module that has no layers until ``configure_model`` makes them."""

    def __init__(self, features: int, hidden_widths: list[int], targets: int, dropout: float):
        super().__init__()
        self.widths, self.targets = (features, *hidden_widths), targets
        self.layers: nn.Module | None = None

    def configure_model(self) -> None:
        if self.layers is None:
            hidden = [nn.Linear(self.widths[0], self.widths[-1]), nn.ReLU()]
            self.layers = nn.Sequential(*hidden, nn.Linear(self.widths[-1], self.targets))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = self._error(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", self._error(batch), sync_dist=True)
        self.log("val_mae", self._error(batch, functional.l1_loss), sync_dist=True)

    def _error(self, batch: tuple[Tensor, Tensor], measure: Any = functional.mse_loss) -> Tensor:
        assert self.layers is not None
        error: Tensor = measure(self.layers(batch[0]), batch[1])
        return error

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)
