"""What the networks here share: what they are judged by, cost and take, and layers of transformers.

A multiply-add is two floating-point operations; element-wise work and biases are not counted, as in
``torch.utils.flop_counter`` and in appendix B of PaLM (Chowdhery et al., 2022, arXiv:2204.02311).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import MeanAbsoluteError, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from scalewise.config import require


class Regression(nn.Module):
    """Outputs and targets are ``[samples, targets]``."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean squared error."""
        return functional.mse_loss(output, target)

    def metrics(self) -> MetricCollection:
        """The mean absolute error over samples and targets."""
        return MetricCollection({"mae": MeanAbsoluteError()})

    def check_data(self, description: Mapping[str, Any]) -> None:
        """The data set must have this model's sizes; one that has no window takes any."""
        for key in ("features", "window", "targets"):
            own = getattr(self, key, description.get(key))
            found = description.get(key, own)
            require(f"model.{key}", own, found == own, f"{found}, as the data set has")


class TokenAccuracy(MulticlassAccuracy):
    """Share of next tokens predicted right, over all ranks.

    Updated with logits ``[samples, tokens, vocabulary]`` and targets ``[samples, tokens]``.
    """

    def __init__(self, vocabulary_size: int) -> None:
        super().__init__(vocabulary_size, average="micro", validate_args=False)

    def update(self, output: Tensor, target: Tensor) -> None:
        super().update(output.argmax(dim=-1), target)


def linear_flops(inputs: int, outputs: int, *, input_gradient: bool = True) -> int:
    """Forward and backward of a linear layer for one row.

    The backward pass of ``y = x W`` is two more products of the same size: one for the gradient of
    ``W``, one for that of ``x``, which the first layer does not need.
    """
    return (6 if input_gradient else 4) * inputs * outputs


def check_at_least(
    model: nn.Module, description: Mapping[str, Any], key: str, data_key: str | None = None
) -> None:
    """Refuse a model whose ``key`` is smaller than what the data set says of it."""
    named = data_key or key
    own = getattr(model, key)
    found = description.get(named, own)
    require(f"model.{key}", own, own >= found, f"at least {found}, the data set's {named}")


class SelfAttention(nn.Module):
    """Multi-head self-attention through ``scaled_dot_product_attention``."""

    def __init__(self, width: int, heads: int, dropout: float, *, causal: bool) -> None:
        super().__init__()
        require("width", width, width % heads == 0, f"a multiple of heads ({heads})")
        self.heads = heads
        self.dropout = dropout
        self.causal = causal
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """``[samples, tokens, width]`` to the same shape.

        ``mask`` is boolean, broadcastable to ``[samples, heads, tokens, tokens]``, true where a
        token may be looked at.
        """
        samples, tokens, width = x.shape
        heads = (samples, tokens, self.heads, width // self.heads)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=self.causal
        )
        output: Tensor = self.projection(mixed.transpose(1, 2).reshape(samples, tokens, width))
        return output


class FeedForward(nn.Sequential):
    """Two linear layers with GELU or ReLU between them."""

    def __init__(self, width: int, inner_width: int, activation: nn.Module) -> None:
        super().__init__(nn.Linear(width, inner_width), activation, nn.Linear(inner_width, width))


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each added to its input and normalised after."""

    def __init__(self, width: int, heads: int, feedforward_width: int, dropout: float) -> None:
        super().__init__()
        self.attention = SelfAttention(width, heads, dropout, causal=False)
        self.attention_norm = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, feedforward_width, nn.ReLU())
        self.feed_forward_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """``[samples, tokens, width]`` to the same shape; ``mask`` as in the attention."""
        x = self.attention_norm(x + self.dropout(self.attention(x, mask)))
        output: Tensor = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
        return output


def block_flops(tokens: int, width: int, inner_width: int) -> int:
    """Forward and backward of one transformer block over one sequence.

    ``softmax(Q K^T) V`` of all heads is two products of ``2 * tokens**2 * width`` operations, and
    its backward is four. A causal mask halves what is needed, but is counted whole, as PaLM's
    appendix B and torch's counter do: figures stay comparable with published ones.
    """
    linear = (
        linear_flops(width, 3 * width)
        + linear_flops(width, width)
        + linear_flops(width, inner_width)
        + linear_flops(inner_width, width)
    )
    return tokens * linear + 3 * 2 * 2 * tokens**2 * width


def sinusoidal_positions(tokens: int, width: int) -> Tensor:
    """``[tokens, width]``: sines on even, cosines on odd columns (Vaswani et al., 2017, 3.5)."""
    position = torch.arange(tokens, dtype=torch.float32).unsqueeze(1)
    step = -math.log(10_000.0) / width
    frequency = torch.exp(torch.arange(0, width, 2, dtype=torch.float32) * step)
    table = torch.zeros(tokens, width)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency[: width // 2])
    return table
