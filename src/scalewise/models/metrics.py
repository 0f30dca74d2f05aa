"""Metrics that torchmetrics has only for flat classes."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric


class TokenAccuracy(Metric):
    """Share of next tokens predicted right, over all ranks.

    Updated with logits ``[samples, tokens, vocabulary]`` and targets ``[samples, tokens]``.
    """

    full_state_update = False
    higher_is_better = True
    correct: Tensor
    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("correct", torch.tensor(0, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("total", torch.tensor(0, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, output: Tensor, target: Tensor) -> None:
        self.correct += (output.argmax(dim=-1) == target).sum()
        self.total += target.numel()

    def compute(self) -> Tensor:
        return self.correct / self.total
