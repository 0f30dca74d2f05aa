"""Synthetic tabular regression in the shape of the published study: 50 features, 3 targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, PositiveInt

from scalewise.config import BelowOne, require
from scalewise.datasets.contract import DividedData, TensorPairs
from scalewise.datasets.labelled import split_indices

FloatRows = npt.NDArray[np.float32]


@dataclass
class Tabular(DividedData):
    """Independent rows of the table.

    The features are standard normal, but for columns 1 and 2, which depend on column 0 and on one
    another. With the seed 42, 10,000 samples and a signal of 0, features and targets are number
    for number those of the published benchmark, whose targets are pure noise: no model can learn
    them. ``signal`` is the share of a target's variance that a linear function of the features
    explains, so the best mean squared error there is to reach is ``1 - signal``.
    """

    sizes: ClassVar[tuple[str, ...]] = ("features", "targets")
    samples: Annotated[int, Field(ge=2)] = 10_000
    features: PositiveInt = 50
    targets: PositiveInt = 3
    signal: Annotated[float, Field(ge=0, le=1)] = 0.5
    validation_fraction: BelowOne = 0.2
    seed: int = 42

    def rows(self) -> tuple[FloatRows, FloatRows]:
        """``[samples, features]`` and ``[samples, targets]``, each near unit variance."""
        # The stream of numpy's legacy seeding never changes.
        random = np.random.RandomState(self.seed)
        x = random.randn(self.samples, self.features).astype(np.float32)
        if self.features >= 3:
            x[:, 1] = 0.7 * x[:, 0] + 0.3 * random.randn(self.samples)
            x[:, 2] = 0.5 * x[:, 0] - 0.3 * x[:, 1] + 0.4 * random.randn(self.samples)
        noise = random.randn(self.samples, self.targets).astype(np.float32)
        explained = x @ random.randn(self.features, self.targets).astype(np.float32)
        explained = (explained - explained.mean(axis=0)) / explained.std(axis=0)
        y = np.sqrt(self.signal) * explained + np.sqrt(1 - self.signal) * noise
        return x, y.astype(np.float32)

    def divide(self) -> tuple[TensorPairs, TensorPairs | None]:
        x, y = self.rows()
        train, validation = (
            TensorPairs(torch.from_numpy(x[rows]), torch.from_numpy(y[rows]))
            for rows in split_indices(self.samples, self.validation_fraction, self.seed)
        )
        return train, validation


@dataclass
class TabularWindows(Tabular):
    """``window`` consecutive rows ``[window, features]``; the target is that of the last row.

    The last rows of the series are held out, and no row is in a window of both parts.
    """

    sizes = ("features", "window", "targets")
    window: PositiveInt = 32

    def __post_init__(self) -> None:
        self._border = self.samples - round(self.samples * self.validation_fraction)
        least = min(part for part in (self._border, self.samples - self._border) if part > 0)
        require("window", self.window, self.window <= least, f"1 to {least}, the rows of a part")

    def divide(self) -> tuple[TensorPairs, TensorPairs | None]:
        x, y = self.rows()
        border = self._border
        train = self._windows(x[:border], y[:border])
        return train, self._windows(x[border:], y[border:]) if border < self.samples else None

    def _windows(self, x: FloatRows, y: FloatRows) -> TensorPairs:
        # A view: the rows that windows share are stored once.
        windows = torch.from_numpy(x).unfold(0, self.window, 1).transpose(1, 2)
        return TensorPairs(windows, torch.from_numpy(y)[self.window - 1 :])
