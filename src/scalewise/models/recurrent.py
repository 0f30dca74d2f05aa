"""Recurrent networks for regression on windows of a series."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn

from scalewise.models.flops import linear_flops
from scalewise.models.objectives import Regression
from scalewise.models.series import check_series_data
from scalewise.ranges import require

_GATES = {"lstm": 4, "gru": 3}


class Recurrent(Regression):
    """LSTM or GRU layers over a window; a linear layer on the last row's state."""

    def __init__(
        self,
        kind: Literal["lstm", "gru"],
        features: int,
        window: int,
        width: int,
        layers: int,
        targets: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require("kind", kind, kind in _GATES, "lstm | gru")
        for name, value in (("features", features), ("window", window), ("targets", targets)):
            require(name, value, value >= 1, "an integer of at least 1")
        require("width", width, width >= 1, "an integer of at least 1")
        require("layers", layers, layers >= 1, "an integer of at least 1")
        require("dropout", dropout, 0 <= dropout < 1, "0 <= dropout < 1")
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
        initial_state_gradient = layers * 2 * self.width * outputs
        rows = self.window * (first + later + state) - initial_state_gradient
        return float(rows + linear_flops(self.width, self.targets))

    def check_data(self, description: Mapping[str, Any]) -> None:
        """The data set must have this model's features, window and targets."""
        check_series_data(self, description)
