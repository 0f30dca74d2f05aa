"""Multi-layer perceptrons for tabular regression."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated

from pydantic import Field, PositiveInt
from torch import Tensor, nn

from scalewise.config import BelowOne
from scalewise.models.contract import Unit
from scalewise.models.parts import Regression, linear_flops


class Mlp(Regression):
    """``[Linear, ReLU, Dropout]`` for each hidden width, then a linear layer.

    With 50 features and 3 targets the published layers 256-128-64 have 54,403 parameters and
    1024-1024-512-512-256 have 2,021,379.
    """

    def __init__(
        self,
        features: PositiveInt,
        hidden_widths: Annotated[list[PositiveInt], Field(min_length=1)],
        targets: PositiveInt,
        dropout: BelowOne = 0.0,
    ) -> None:
        super().__init__()
        self.features = features
        self.targets = targets
        widths = [features, *hidden_widths]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], targets))

    def forward(self, x: Tensor) -> Tensor:
        """``[samples, features]`` to ``[samples, targets]``."""
        output: Tensor = self.layers(x)
        return output

    def flops_per_sample(self) -> float:
        """Three products a layer, two for the first: the data need no gradient."""
        return sum(unit.flops for unit in self.pipeline_units())

    def pipeline_units(self) -> list[Unit]:
        """Each linear layer with what follows it before the next one."""
        layers = list(self.layers)
        starts = [i for i, layer in enumerate(layers) if isinstance(layer, nn.Linear)]
        units = []
        for begin, end in pairwise([*starts, len(layers)]):
            linear = layers[begin]
            assert isinstance(linear, nn.Linear)
            flops = linear_flops(linear.in_features, linear.out_features, input_gradient=begin > 0)
            units.append(Unit(nn.Sequential(*layers[begin:end]), float(flops)))
        return units


class SizedMlp(Mlp):
    """A perceptron with hidden layers of one width, chosen so that it has ``parameters``.

    It answers from how many parameters on more GPUs pay: depth, activation and data stay as they
    are from 50 thousand to 2 billion parameters, so that nothing but the size differs between two
    of them. The width is a whole number, a multiple of 8 from 512 on as tensor cores like it: the
    real count is within 2 % of the wanted one.
    """

    def __init__(
        self,
        parameters: Annotated[int, Field(ge=50_000, le=2_000_000_000)],
        features: PositiveInt = 50,
        targets: PositiveInt = 3,
        hidden_layers: Annotated[int, Field(ge=2, le=64)] = 4,
        dropout: BelowOne = 0.0,
    ) -> None:
        # (h - 1) w^2 + (features + h + targets) w + targets parameters: a quadratic equation in w.
        a, b = hidden_layers - 1, features + hidden_layers + targets
        width = (-b + math.sqrt(b * b + 4 * a * (parameters - targets))) / (2 * a)
        width = 8 * round(width / 8) if width >= 512 else max(1, round(width))
        super().__init__(features, [width] * hidden_layers, targets, dropout)
