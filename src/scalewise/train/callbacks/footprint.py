"""What a rank's optimizer keeps and changes, and how much of the network pruning leaves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytorch_lightning as pl
import torch
from torch import Tensor, nn


def optimizer_state_bytes(optimizers: Sequence[torch.optim.Optimizer]) -> int | None:
    """Bytes of every tensor in the optimizers' state that this rank holds.

    Counted on the live optimizers, after the last step. A tensor sharded over ranks counts with
    this rank's part. None where there is no optimizer.
    """
    if not optimizers:
        return None
    held = {
        id(value): _local(value)
        for optimizer in optimizers
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    }
    return sum(value.numel() * value.element_size() for value in held.values())


def zero_share(parameters: Iterable[nn.Parameter]) -> float | None:
    """Share of these parameters' values that are exactly 0, 0 to 1; None of none."""
    parts = [_local(p.detach()) for p in parameters]
    total = sum(p.numel() for p in parts)
    return sum(int((p == 0).sum()) for p in parts) / total if total else None


def parameter_sums(trainer: pl.Trainer, module: pl.LightningModule) -> list[float] | None:
    """The sum of each trainable parameter in fp64. Waits for the device once.

    None where nothing optimizes, and where this rank holds parts of the model.
    """
    learning = [p for p in module.parameters() if p.requires_grad]
    divided = any(p.is_meta or hasattr(p, "to_local") for p in learning)
    if not trainer.optimizers or not learning or divided:
        return None
    sums = torch.stack([p.detach().sum(dtype=torch.float64) for p in learning])
    return [float(value) for value in sums.tolist()]


def _local(value: Tensor) -> Tensor:
    to_local = getattr(value, "to_local", None)
    local = to_local() if callable(to_local) else value
    assert isinstance(local, Tensor)
    return local
