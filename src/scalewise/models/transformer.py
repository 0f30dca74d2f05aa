"""The parts that the transformers here share."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from scalewise.config import require
from scalewise.models.objectives import attention_flops, linear_flops


class SelfAttention(nn.Module):
    """Multi-head self-attention through ``scaled_dot_product_attention``."""

    def __init__(self, width: int, heads: int, dropout: float, *, causal: bool) -> None:
        super().__init__()
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
    """Forward and backward of one transformer block over one sequence."""
    linear = (
        linear_flops(width, 3 * width)
        + linear_flops(width, width)
        + linear_flops(width, inner_width)
        + linear_flops(inner_width, width)
    )
    return tokens * linear + attention_flops(tokens, width)


def sinusoidal_positions(tokens: int, width: int) -> Tensor:
    """``[tokens, width]``: sines on even, cosines on odd columns (Vaswani et al., 2017, 3.5)."""
    position = torch.arange(tokens, dtype=torch.float32).unsqueeze(1)
    step = -math.log(10_000.0) / width
    frequency = torch.exp(torch.arange(0, width, 2, dtype=torch.float32) * step)
    table = torch.zeros(tokens, width)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency[: width // 2])
    return table


def check_heads(width: int, heads: int) -> None:
    """Refuse a width that attention cannot divide among its heads."""
    require("width", width, width % heads == 0, f"a multiple of heads ({heads})")
