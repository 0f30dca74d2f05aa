"""Networks of any size and one shape, to ask from how many parameters on more GPUs pay."""

from __future__ import annotations

import math

from scalewise.models.mlp import Mlp
from scalewise.ranges import require

SMALLEST, LARGEST = 50_000, 2_000_000_000


class SizedMlp(Mlp):
    """A perceptron with hidden layers of one width, chosen so that it has ``parameters``.

    Depth, activation and data stay as they are from 50 thousand to 2 billion parameters, so that
    nothing but the size differs between two of them. The width is a whole number, a multiple of 8
    from 512 on as tensor cores like it: the real count is within 2 % of the wanted one.
    """

    def __init__(
        self,
        parameters: int,
        features: int = 50,
        targets: int = 3,
        hidden_layers: int = 4,
        dropout: float = 0.0,
    ) -> None:
        require(
            "parameters",
            parameters,
            SMALLEST <= parameters <= LARGEST,
            f"{SMALLEST} to {LARGEST}",
        )
        require("hidden_layers", hidden_layers, 2 <= hidden_layers <= 64, "2 to 64")
        width = width_for(parameters, features, targets, hidden_layers)
        super().__init__(features, [width] * hidden_layers, targets, dropout)


def width_for(parameters: int, features: int, targets: int, hidden_layers: int) -> int:
    """The width at which a perceptron of equal hidden layers comes nearest to ``parameters``.

    It has ``(h - 1) w^2 + (features + h + targets) w + targets`` of them, h being the number of
    hidden layers: a quadratic equation in w.
    """
    a = hidden_layers - 1
    b = features + hidden_layers + targets
    width = (-b + math.sqrt(b * b + 4 * a * (parameters - targets))) / (2 * a)
    return 8 * round(width / 8) if width >= 512 else max(1, round(width))
