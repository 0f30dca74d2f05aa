"""A transformer and recurrent networks for regression on windows of a series."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt
from torch import Tensor, nn

from scalewise.config import BelowOne
from scalewise.models.parts import (
    EncoderLayer,
    Regression,
    block_flops,
    linear_flops,
    sinusoidal_positions,
)

_GATES = {"lstm": 4, "gru": 3}


class SeriesTransformer(Regression):
    """A linear layer on each row, an encoder, a linear layer on the last row's state."""

    def __init__(
        self, features: PositiveInt, window: PositiveInt, width: PositiveInt, heads: PositiveInt,
        layers: PositiveInt, feedforward_width: PositiveInt, targets: PositiveInt,
        dropout: BelowOne = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.features = features
        self.window = window
        self.width = width
        self.feedforward_width = feedforward_width
        self.targets = targets
        self.embedding = nn.Linear(features, width)
        self.register_buffer("positions", sinusoidal_positions(window, width), persistent=False)
        self.layers = nn.ModuleList(
            EncoderLayer(width, heads, feedforward_width, dropout) for _ in range(layers)
        )
        self.head = nn.Linear(width, targets)

    def forward(self, x: Tensor) -> Tensor:
        """``[samples, window, features]`` to ``[samples, targets]``."""
        hidden = self.embedding(x) + self.get_buffer("positions")[: x.shape[1]]
        for layer in self.layers:
            hidden = layer(hidden)
        output: Tensor = self.head(hidden[:, -1])
        return output

    def flops_per_sample(self) -> float:
        """The embedding of each row (the data need no gradient), the blocks, the last layer."""
        embedding = linear_flops(self.features, self.width, input_gradient=False)
        blocks = len(self.layers) * block_flops(self.window, self.width, self.feedforward_width)
        return float(self.window * embedding + blocks + linear_flops(self.width, self.targets))


class Recurrent(Regression):
    """LSTM or GRU layers over a window; a linear layer on the last row's state."""

    def __init__(
        self, kind: Literal["lstm", "gru"], features: PositiveInt, window: PositiveInt,
        width: PositiveInt, layers: PositiveInt, targets: PositiveInt, dropout: BelowOne = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kind = kind
        self.features = features
        self.window = window
        self.width = width
        self.targets = targets
        recurrent = nn.LSTM if kind == "lstm" else nn.GRU
        # Dropout lies between layers: torch warns where there is no such place.
        between = dropout if layers > 1 else 0.0
        self.recurrent = recurrent(features, width, layers, batch_first=True, dropout=between)
        self.head = nn.Linear(width, targets)

    def forward(self, x: Tensor) -> Tensor:
        """``[samples, window, features]`` to ``[samples, targets]``."""
        states, _ = self.recurrent(x)
        output: Tensor = self.head(states[:, -1])
        return output

    def flops_per_sample(self) -> float:
        """Per row and layer one product with the input and one with the state, for every gate.

        The data need no gradient, nor does the state before the first row. Torch's counter sees
        these products only where the layers run unfused.
        """
        outputs = _GATES[self.kind] * self.width
        layers = self.recurrent.num_layers
        first = linear_flops(self.features, outputs, input_gradient=False)
        later = (layers - 1) * linear_flops(self.width, outputs)
        state = layers * linear_flops(self.width, outputs)
        # No gradient is computed of the first state.
        rows = self.window * (first + later + state) - layers * 2 * self.width * outputs
        return float(rows + linear_flops(self.width, self.targets))
