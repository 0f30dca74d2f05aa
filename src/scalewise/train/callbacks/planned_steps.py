"""How many optimizer steps a fit means to take, and of how many samples a batch."""

from __future__ import annotations

import math
from typing import Any

import pytorch_lightning as pl


def planned_steps(trainer: pl.Trainer) -> int | None:
    """Optimizer steps this fit means to take; None where nothing bounds it."""
    total = trainer.estimated_stepping_batches
    sampler = getattr(trainer.train_dataloader, "batch_sampler", None)
    if sampler is not None and getattr(sampler, "steps_per_batch", 1) > 1:
        # Lightning counts batches, and these hold several steps each.
        epochs = trainer.max_epochs if trainer.max_epochs not in (None, -1) else math.inf
        limit = trainer.max_steps if trainer.max_steps != -1 else math.inf
        total = min(sampler.steps * epochs, limit)
    return int(total) if math.isfinite(total) and total >= 0 else None


def loader_batch_size(trainer: pl.Trainer) -> int | None:
    """Samples of a batch as this rank's loader says itself.

    None where it does not say (a list of loaders, a loader without batching, a batch sampler of
    the user's own, whose ``batch_size`` may be the most it gives), and where an epoch has one
    batch, which may be a smaller one.
    """
    loader = trainer.train_dataloader
    sampler: Any = getattr(loader, "batch_sampler", None)
    own = hasattr(sampler, "samples_of_rank")
    told = sampler.samples_of_rank * sampler.steps_per_batch if own else None
    told = getattr(loader, "batch_size", None) if told is None else told
    return told if isinstance(told, int) and trainer.num_training_batches > 1 else None
