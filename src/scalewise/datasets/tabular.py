"""Synthetic tabular regression in the shape of the published study: 50 features, 3 targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from scalewise.config import require, require_at_least
from scalewise.datasets.contract import DividedData, TensorPairs
from scalewise.datasets.labelled import check_split, held_out_of, split_indices

FloatRows = npt.NDArray[np.float32]


def tabular_rows(
    samples: int, features: int, targets: int, signal: float, seed: int
) -> tuple[FloatRows, FloatRows]:
    """Features ``[samples, features]`` and targets ``[samples, targets]``, each near unit variance.

    The features are standard normal, but for columns 1 and 2, which depend on column 0 and on one
    another. With the seed 42, 10,000 samples and a signal of 0, features and targets are number
    for number those of the published benchmark, whose targets are pure noise: no model can learn
    them. ``signal`` is the share of a target's variance that a linear function of the features
    explains, so the best mean squared error there is to reach is ``1 - signal``.
    """
    random = np.random.RandomState(seed)  # the stream of numpy's legacy seeding never changes
    x = random.randn(samples, features).astype(np.float32)
    if features >= 3:
        x[:, 1] = 0.7 * x[:, 0] + 0.3 * random.randn(samples)
        x[:, 2] = 0.5 * x[:, 0] - 0.3 * x[:, 1] + 0.4 * random.randn(samples)
    noise = random.randn(samples, targets).astype(np.float32)
    explained = x @ random.randn(features, targets).astype(np.float32)
    explained = (explained - explained.mean(axis=0)) / explained.std(axis=0)
    y = np.sqrt(signal) * explained + np.sqrt(1 - signal) * noise
    return x, y.astype(np.float32)


class _Table(DividedData):
    """The table by its size, its signal and its seed."""

    synthetic = True

    def __init__(self, samples: int, features: int, targets: int, signal: float, seed: int) -> None:
        require_at_least(2, samples=samples)
        require_at_least(1, features=features, targets=targets)
        require("signal", signal, 0 <= signal <= 1, "0 <= signal <= 1")
        self.samples = samples
        self.features = features
        self.targets = targets
        self.signal = signal
        self.seed = seed
        self.source = f"generated, seed {seed}"

    def rows(self) -> tuple[FloatRows, FloatRows]:
        """See :func:`tabular_rows`."""
        return tabular_rows(self.samples, self.features, self.targets, self.signal, self.seed)


class Tabular(_Table):
    """Independent rows of the table."""

    def __init__(
        self,
        samples: int = 10_000,
        features: int = 50,
        targets: int = 3,
        signal: float = 0.5,
        validation_fraction: float = 0.2,
        seed: int = 42,
    ) -> None:
        super().__init__(samples, features, targets, signal, seed)
        check_split(validation_fraction)
        self.validation_fraction = validation_fraction
        self.train_samples = samples - held_out_of(samples, validation_fraction)

    def divide(self) -> tuple[TensorPairs, TensorPairs]:
        x, y = self.rows()
        train, validation = (
            TensorPairs(torch.from_numpy(x[rows]), torch.from_numpy(y[rows]))
            for rows in split_indices(self.samples, self.validation_fraction, self.seed)
        )
        return train, validation

    def shape(self) -> dict[str, Any]:
        return {"features": self.features, "targets": self.targets, "signal": self.signal}


class TabularWindows(_Table):
    """``window`` consecutive rows ``[window, features]``; the target is that of the last row.

    The last rows of the series are held out, and no row is in a window of both parts.
    """

    def __init__(
        self,
        samples: int = 10_000,
        window: int = 32,
        features: int = 50,
        targets: int = 3,
        signal: float = 0.5,
        validation_fraction: float = 0.2,
        seed: int = 42,
    ) -> None:
        super().__init__(samples, features, targets, signal, seed)
        check_split(validation_fraction)
        held_out = round(samples * validation_fraction)
        shorter = min(part for part in (samples - held_out, held_out) if part > 0)
        require("window", window, 1 <= window <= shorter, f"1 to {shorter}, the rows of a part")
        self.window = window
        self._held_out = held_out
        self.train_samples = samples - held_out - window + 1

    def divide(self) -> tuple[TensorPairs, TensorPairs | None]:
        x, y = self.rows()
        border = self.samples - self._held_out
        train = self._windows(x[:border], y[:border])
        return train, self._windows(x[border:], y[border:]) if self._held_out else None

    def _windows(self, x: FloatRows, y: FloatRows) -> TensorPairs:
        # A view: the rows that windows share are stored once.
        windows = torch.from_numpy(x).unfold(0, self.window, 1).transpose(1, 2)
        return TensorPairs(windows, torch.from_numpy(y)[self.window - 1 :])

    def shape(self) -> dict[str, Any]:
        return {
            "features": self.features,
            "window": self.window,
            "targets": self.targets,
            "signal": self.signal,
        }
