"""How many optimizer steps a fit means to take, and of how many samples each."""

from __future__ import annotations

import math

import pytorch_lightning as pl
from pytorch_lightning.callbacks import GradientAccumulationScheduler as _Scheduler


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


def loader_samples_per_step(trainer: pl.Trainer) -> int | None:
    """Samples that this rank's loader was asked for in one optimizer step, as it says itself.

    None where it does not say: a list of loaders, a loader without batching, a batch sampler of
    the user's own, whose ``batch_size`` may be the most it gives, or an accumulation that changes
    from epoch to epoch.
    """
    callbacks = getattr(trainer, "callbacks", ())  # which Lightning does not declare
    if any(len(c.scheduling) > 1 for c in callbacks if isinstance(c, _Scheduler)):
        return None
    loader = trainer.train_dataloader
    sampler = getattr(loader, "batch_sampler", None)
    told = getattr(sampler, "samples_of_rank", None)
    if told is None:
        told = getattr(loader, "batch_size", None)
    return told * trainer.accumulate_grad_batches if isinstance(told, int) else None
