"""What a network is trained for and judged by, what it costs, and the data that fit it.

A multiply-add is two floating-point operations; element-wise work and biases are not counted, as in
``torch.utils.flop_counter`` and in appendix B of PaLM (Chowdhery et al., 2022, arXiv:2204.02311).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import MeanAbsoluteError, Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from scalewise.config import require


class Regression(nn.Module):
    """Outputs and targets are ``[samples, targets]``."""

    shared_sizes: ClassVar[tuple[str, ...]] = ("features", "targets")
    """What model and data set must have in common."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean squared error."""
        return functional.mse_loss(output, target)

    def metrics(self) -> MetricCollection:
        """The mean absolute error over samples and targets."""
        return MetricCollection({"mae": MeanAbsoluteError()})

    def check_data(self, description: Mapping[str, Any]) -> None:
        """The data set must have this model's sizes."""
        check_equal(self, description, *self.shared_sizes)


class Classification(nn.Module):
    """Outputs are logits ``[samples, classes]``, targets class numbers ``[samples]``."""

    classes: int

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy in nats."""
        return functional.cross_entropy(output, target)

    def metrics(self) -> MetricCollection:
        """The share of samples put into their class."""
        accuracy = MulticlassAccuracy(num_classes=self.classes, average="micro")
        return MetricCollection({"accuracy": accuracy})


class TokenAccuracy(Metric):
    """Share of next tokens predicted right, over all ranks; torchmetrics has flat classes only.

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


def linear_flops(inputs: int, outputs: int, *, input_gradient: bool = True) -> int:
    """Forward and backward of a linear layer for one row.

    The backward pass of ``y = x W`` is two more products of the same size: one for the gradient of
    ``W``, one for that of ``x``, which the first layer does not need.
    """
    return (6 if input_gradient else 4) * inputs * outputs


def attention_flops(tokens: int, width: int) -> int:
    """Forward and backward of scaled dot-product attention over one sequence, all heads together.

    ``softmax(Q K^T) V`` is two products of ``2 * tokens**2 * width`` operations, and its backward
    is four. A causal mask halves what is needed, but is counted whole, as PaLM's appendix B and
    torch's counter do: figures stay comparable with published ones.
    """
    return 3 * 2 * 2 * tokens * tokens * width


def check_equal(model: nn.Module, description: Mapping[str, Any], *keys: str) -> None:
    """Refuse a model whose sizes are not those that the data set says."""
    for key in keys:
        own = getattr(model, key)
        found = description.get(key, own)
        require(f"model.{key}", own, found == own, f"{found}, as the data set has")


def check_at_least(
    model: nn.Module, description: Mapping[str, Any], key: str, data_key: str | None = None
) -> None:
    """Refuse a model whose ``key`` is smaller than what the data set says of it."""
    named = data_key or key
    own = getattr(model, key)
    found = description.get(named, own)
    require(f"model.{key}", own, own >= found, f"at least {found}, the data set's {named}")
