"""How many optimizer steps a fit means to take."""

from __future__ import annotations

import math

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
