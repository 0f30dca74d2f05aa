"""A transformer encoder that puts a text into one of a few classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from scalewise.config import BelowOne
from scalewise.models.contract import Unit
from scalewise.models.parts import (
    EncoderLayer,
    block_flops,
    check_at_least,
    linear_flops,
    sinusoidal_positions,
)

PADDING = 0
"""The token that fills a text up to the length of its batch."""


class PlacedWords(nn.Module):
    """Words to vectors of unit variance, with one for each position added."""

    def __init__(
        self, vocabulary_size: int, max_tokens: int, width: int, dropout: float, *, learned: bool
    ) -> None:
        super().__init__()
        self.word = nn.Embedding(vocabulary_size, width, padding_idx=PADDING)
        nn.init.normal_(self.word.weight, std=1 / math.sqrt(width))
        if learned:
            self.positions = nn.Parameter(torch.randn(max_tokens, width) * 0.02)
        else:
            table = sinusoidal_positions(max_tokens, width)
            self.register_buffer("positions", table, persistent=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Word numbers ``[samples, tokens]`` to ``[samples, tokens, width]``."""
        words = self.word(x) * math.sqrt(self.word.embedding_dim)
        output: Tensor = self.dropout(words + self.positions[: x.shape[1]])
        return output


class PaddedLayer(nn.Module):
    """An encoder layer that looks away from padding."""

    def __init__(self, layer: EncoderLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden: Tensor, x: Tensor) -> Tensor:
        """``[samples, tokens, width]`` to the same shape; ``x`` are the words."""
        output: Tensor = self.layer(hidden, (x != PADDING)[:, None, None, :])
        return output


class PooledHead(nn.Module):
    """The mean over the words that are there, and a linear layer."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, classes)

    def forward(self, hidden: Tensor, x: Tensor) -> Tensor:
        """``[samples, tokens, width]`` and words to logits ``[samples, classes]``."""
        weights = (x != PADDING).unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
        output: Tensor = self.linear(mean)
        return output


class TextClassifier(nn.Module):
    """Embedding, encoder, mean over the words that are there, one linear layer.

    With 20,000 words and sinusoidal positions (which are no parameters), 128 wide with 2 layers
    and a feed-forward of 256 has 2,825,476 parameters for 4 classes; 256 wide with 4 layers and
    1,024 has 8,280,068.
    """

    def __init__(
        self, vocabulary_size: Annotated[int, Field(ge=3)], max_tokens: PositiveInt,
        classes: Annotated[int, Field(ge=2)], width: PositiveInt, heads: PositiveInt,
        layers: PositiveInt, feedforward_width: PositiveInt, dropout: BelowOne = 0.1,
        positions: Literal["sinusoidal", "learned"] = "sinusoidal",
    ) -> None:  # fmt: skip
        super().__init__()
        self.vocabulary_size = vocabulary_size
        self.max_tokens = max_tokens
        self.classes = classes
        self.width = width
        self.feedforward_width = feedforward_width
        learned = positions == "learned"
        self.embedding = PlacedWords(vocabulary_size, max_tokens, width, dropout, learned=learned)
        self.layers = nn.ModuleList(
            EncoderLayer(width, heads, feedforward_width, dropout) for _ in range(layers)
        )
        self.head = PooledHead(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Word numbers ``[samples, tokens]``, 0 for padding, to logits ``[samples, classes]``."""
        mask = (x != PADDING)[:, None, None, :]
        hidden = self.embedding(x)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        output: Tensor = self.head(hidden, x)
        return output

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy in nats; ``target`` are class numbers ``[samples]``."""
        return functional.cross_entropy(output, target)

    def metrics(self) -> MetricCollection:
        """The share of samples put into their class."""
        return MetricCollection({"accuracy": MulticlassAccuracy(self.classes, average="micro")})

    def flops_per_sample(self) -> float:
        """One text of ``max_tokens`` words, padding included: it is computed like any word."""
        return sum(unit.flops for unit in self.pipeline_units())

    def pipeline_units(self) -> list[Unit]:
        """The embedding, each layer, and the head."""
        block = float(block_flops(self.max_tokens, self.width, self.feedforward_width))
        layers = [layer for layer in self.layers if isinstance(layer, EncoderLayer)]
        return [
            Unit(self.embedding, 0.0),
            *(Unit(PaddedLayer(layer), block, needs_input=True) for layer in layers),
            Unit(self.head, float(linear_flops(self.width, self.classes)), True),
        ]

    def check_data(self, description: Mapping[str, Any]) -> None:
        """The data's words and classes must be known to the model, and its texts not too long."""
        for key in ("vocabulary_size", "max_tokens", "classes"):
            check_at_least(self, description, key)
