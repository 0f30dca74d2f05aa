"""What a LightningModule's own ``configure_optimizers`` really returned, by name."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def class_names(optimizers: Sequence[torch.optim.Optimizer]) -> str:
    """``SGD``, or ``SGD+Adam`` of several; ``none`` where nothing optimizes."""
    classes = [type(optimizer) for optimizer in optimizers]
    # Where a module returns no optimizer, Lightning puts a mock of its own in the place.
    own = [cls.__name__ for cls in classes if not cls.__module__.startswith("pytorch_lightning.")]
    return "+".join(own) or "none"
