"""What a network is trained for and judged by."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from torchmetrics import MeanAbsoluteError, Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

# Floating-point operations of the common layers, and what PyTorch counts for a whole model.
#
# Convention: a multiply-add is two operations; element-wise work and biases are not counted, as in
# ``torch.utils.flop_counter`` and in appendix B of PaLM (Chowdhery et al., 2022,
# arXiv:2204.02311). The backward pass of a product ``y = x W`` is two more products of the same
# size: one for the gradient of ``W``, one for that of ``x``, which the first layer does not need.


def linear_flops(inputs: int, outputs: int, *, input_gradient: bool = True) -> int:
    """Forward and backward of a linear layer for one row."""
    return (6 if input_gradient else 4) * inputs * outputs


def attention_flops(tokens: int, width: int) -> int:
    """Forward and backward of scaled dot-product attention over one sequence, all heads together.

    ``softmax(Q K^T) V`` is two products of ``2 * tokens**2 * width`` operations, and its backward
    is four. A causal mask halves what is needed, but is counted whole, as PaLM's appendix B and
    torch's counter do: figures stay comparable with published ones.
    """
    return 3 * 2 * 2 * tokens * tokens * width


def count_flops(model: nn.Module, x: Tensor, target: Tensor) -> int:
    """What ``torch.utils.flop_counter`` sees in one forward and backward of this batch.

    Attention runs unfused meanwhile: the fused kernels recompute ``Q K^T`` in their backward and
    the counter includes that, which no declared count does. A recurrent layer that runs as one
    fused kernel is counted as 0.
    """
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):
        loss = cast(Any, model).loss(model(x), target)
        loss.backward()
    model.zero_grad(set_to_none=True)
    return int(counter.get_total_flops())


# Metrics that torchmetrics has only for flat classes.


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


class Regression(nn.Module):
    """Outputs and targets are ``[samples, targets]``."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean squared error."""
        return functional.mse_loss(output, target)

    def metrics(self) -> MetricCollection:
        """The mean absolute error over samples and targets."""
        return MetricCollection({"mae": MeanAbsoluteError()})


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
