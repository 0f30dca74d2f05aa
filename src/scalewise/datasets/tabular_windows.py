"""The synthetic table read as a series, in windows."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from scalewise.datasets.split import check_split
from scalewise.datasets.tabular import FloatRows, check_tabular, tabular_rows
from scalewise.datasets.tensors import TensorPairs
from scalewise.ranges import require


class TabularWindows:
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
        check_tabular(samples, features, targets, signal)
        check_split(validation_fraction)
        held_out = round(samples * validation_fraction)
        shorter = min(part for part in (samples - held_out, held_out) if part > 0)
        require("window", window, 1 <= window <= shorter, f"1 to {shorter}, the rows of a part")
        self.samples = samples
        self.window = window
        self.features = features
        self.targets = targets
        self.signal = signal
        self.seed = seed
        self._held_out = held_out
        self.train_samples = samples - held_out - window + 1

    @cached_property
    def _parts(self) -> tuple[TensorPairs, TensorPairs | None]:
        x, y = tabular_rows(self.samples, self.features, self.targets, self.signal, self.seed)
        border = self.samples - self._held_out
        train = self._windows(x[:border], y[:border])
        return train, self._windows(x[border:], y[border:]) if self._held_out else None

    def _windows(self, x: FloatRows, y: FloatRows) -> TensorPairs:
        # A view: the rows that windows share are stored once.
        windows = torch.from_numpy(x).unfold(0, self.window, 1).transpose(1, 2)
        return TensorPairs(windows, torch.from_numpy(y)[self.window - 1 :])

    @property
    def train(self) -> TensorPairs:
        return self._parts[0]

    @property
    def validation(self) -> TensorPairs | None:
        return self._parts[1]

    def describe(self) -> dict[str, Any]:
        train, validation = self._parts
        return {
            "source": f"generated, seed {self.seed}",
            "synthetic": True,
            "train_samples": len(train),
            "validation_samples": len(validation) if validation is not None else 0,
            "features": self.features,
            "window": self.window,
            "targets": self.targets,
            "signal": self.signal,
        }
