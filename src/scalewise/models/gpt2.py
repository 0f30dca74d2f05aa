"""GPT-2 (Radford et al., 2019): a causal transformer that predicts the next token."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import MetricCollection

from scalewise.config import BelowOne
from scalewise.models.contract import Unit
from scalewise.models.parts import (
    FeedForward,
    SelfAttention,
    TokenAccuracy,
    block_flops,
    check_at_least,
    linear_flops,
)


class Block(nn.Module):
    """Attention and feed-forward, each normalised before and added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, dropout, causal=True)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, 4 * width, nn.GELU(approximate="tanh"))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """``[samples, tokens, width]`` to the same shape."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        output: Tensor = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return output


class PlacedTokens(nn.Module):
    """Tokens to vectors, with a learned vector for each position added."""

    def __init__(
        self, vocabulary_size: int, context_length: int, width: int, dropout: float
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary_size, width)
        self.position = nn.Embedding(context_length, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``[samples, tokens]`` to ``[samples, tokens, width]``."""
        output: Tensor = self.dropout(self.token(x) + self.position.weight[: x.shape[1]])
        return output


class TiedOutput(nn.Module):
    """The last norm, and an output layer that is the token embedding."""

    def __init__(self, width: int, token: nn.Embedding) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.token = token

    def forward(self, hidden: Tensor) -> Tensor:
        """``[samples, tokens, width]`` to logits ``[samples, tokens, vocabulary]``."""
        return functional.linear(self.norm(hidden), self.token.weight)


class Gpt2(nn.Module):
    """GPT-2 with learned positions and an output layer that shares the token embedding.

    The smallest published size (12 layers, 12 heads, width 768, 1,024 tokens) has 124,475,904
    parameters with the vocabulary of 50,257 rounded up to 50,304.
    """

    def __init__(
        self, vocabulary_size: Annotated[int, Field(ge=2)], context_length: PositiveInt,
        layers: PositiveInt, heads: PositiveInt, width: PositiveInt, dropout: BelowOne = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.vocabulary_size = vocabulary_size
        self.context_length = context_length
        self.width = width
        self.embedding = PlacedTokens(vocabulary_size, context_length, width, dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.output = TiedOutput(width, self.embedding.token)
        self._initialise()

    def _initialise(self) -> None:
        """Normal weights of 0.02, less by ``sqrt(2 layers)`` where a residual path is fed."""
        residual_std = 0.02 / math.sqrt(2 * len(self.blocks))
        for name, module in self.named_modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            elif isinstance(module, nn.Linear):
                feeds_residual = name.endswith(("attention.projection", "feed_forward.2"))
                nn.init.normal_(module.weight, std=residual_std if feeds_residual else 0.02)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``[samples, tokens]`` to logits ``[samples, tokens, vocabulary]``."""
        hidden = self.embedding(x)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.output(hidden)
        return logits

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy in nats per token; ``target`` is ``[samples, tokens]``."""
        return functional.cross_entropy(output.flatten(0, 1), target.flatten())

    def metrics(self) -> MetricCollection:
        """The share of next tokens predicted right."""
        return MetricCollection({"accuracy": TokenAccuracy(self.vocabulary_size)})

    def flops_per_sample(self) -> float:
        """One sequence of ``context_length`` tokens: its blocks and the output layer.

        The formula is that of PaLM's appendix B, ``6 N + 12 L T width`` a token, where N counts
        the weights that take part in a product (biases, norms and positions do not).
        """
        return sum(unit.flops for unit in self.pipeline_units())

    def pipeline_units(self) -> list[Unit]:
        """The embeddings, each block, and the output layer, which is worth several blocks."""
        tokens = self.context_length
        block = float(block_flops(tokens, self.width, 4 * self.width))
        return [
            Unit(self.embedding, 0.0),
            *(Unit(one, block) for one in self.blocks),
            Unit(self.output, float(tokens * linear_flops(self.width, self.vocabulary_size))),
        ]

    def check_data(self, description: Mapping[str, Any]) -> None:
        """The data's tokens must be known to the model, and its sequences not too long."""
        check_at_least(self, description, "vocabulary_size")
        check_at_least(self, description, "context_length", "sequence_length")
