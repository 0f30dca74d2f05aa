"""Generated sensor data for the forward-only operations: timed streams and point clouds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from scalewise.ranges import require

_FLOATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class BatchRows(Dataset[Any]):
    """Rows of several tensors of the same length, handed out as whole batches."""

    def __init__(self, tensors: Any) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(_first(self.tensors))

    def __getitem__(self, index: int) -> Any:
        return _rows(self.tensors, torch.tensor(index))

    def __getitems__(self, indices: Sequence[int]) -> Any:
        return _rows(self.tensors, torch.as_tensor(indices, dtype=torch.int64))


class SensorStreams:
    """Streams of features, each with times of its own, and the times they are wanted at.

    A sample covers one second. ``lengths[i]`` samples of ``widths[i]`` features make stream ``i``;
    their times are even with some jitter, as a sensor's are. A batch is ``(streams, times,
    targets)``, see :data:`scalewise.operations.fusion.FusionBatch`.
    """

    def __init__(
        self,
        lengths: list[int],
        widths: list[int],
        targets: int = 50,
        samples: int = 1024,
        dtype: str = "bf16",
        seed: int = 42,
    ) -> None:
        require(
            "lengths",
            lengths,
            bool(lengths) and len(lengths) == len(widths) and min(lengths) >= 1,
            f"as many numbers of at least 1 as there are widths, {len(widths)}",
        )
        require("widths", widths, min(widths) >= 1, "numbers of at least 1")
        require("targets", targets, targets >= 1, "at least 1")
        require("samples", samples, samples >= 1, "at least 1")
        require("dtype", dtype, dtype in _FLOATS, ", ".join(_FLOATS))
        self.lengths, self.widths, self.targets = lengths, widths, targets
        self.samples, self.dtype, self.seed = samples, dtype, seed
        self.train_samples = samples
        self.validation = None

    @cached_property
    def train(self) -> BatchRows:
        generator = torch.Generator().manual_seed(self.seed)
        streams = tuple(
            torch.randn(self.samples, length, width, generator=generator).to(_FLOATS[self.dtype])
            for length, width in zip(self.lengths, self.widths, strict=True)
        )
        times = tuple(self._times(length, generator) for length in self.lengths)
        return BatchRows((streams, times, self._times(self.targets, generator)))

    def _times(self, count: int, generator: torch.Generator) -> Tensor:
        """``[samples, count]`` ascending times in seconds: even steps, moved by up to a third."""
        jitter = torch.rand(self.samples, count, generator=generator) - 0.5
        return (torch.arange(count) + jitter / 1.5) / count

    def describe(self) -> dict[str, Any]:
        return {
            "source": f"generated, seed {self.seed}",
            "synthetic": True,
            "train_samples": self.samples,
            "validation_samples": 0,
            "fused_features": sum(self.widths),
        }


class PointClouds:
    """Clouds of points around a few centres, some outside the grid, with features.

    A sample is one cloud. A batch is ``(points, features)``: fp32 ``[B, points, 3]`` and
    ``[B, points, features]``.
    """

    def __init__(
        self,
        points: int = 500_000,
        features: int = 8,
        spread: float = 2.0,
        samples: int = 16,
        seed: int = 42,
    ) -> None:
        require("points", points, points >= 1, "at least 1")
        require("features", features, features >= 1, "at least 1")
        require("spread", spread, spread > 0, "above 0")
        require("samples", samples, samples >= 1, "at least 1")
        self.points, self.features, self.spread = points, features, spread
        self.samples, self.seed = samples, seed
        self.train_samples = samples
        self.validation = None

    @cached_property
    def train(self) -> BatchRows:
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.samples, self.points)
        points = torch.randn(*shape, 3, generator=generator).mul_(self.spread)
        return BatchRows((points, torch.randn(*shape, self.features, generator=generator)))

    def describe(self) -> dict[str, Any]:
        return {
            "source": f"generated, seed {self.seed}",
            "synthetic": True,
            "train_samples": self.samples,
            "validation_samples": 0,
            "points_per_sample": self.points,
            "features": self.features,
        }


def _first(tensors: Any) -> Tensor:
    return tensors if isinstance(tensors, Tensor) else _first(tensors[0])


def _rows(tensors: Any, index: Tensor) -> Any:
    if isinstance(tensors, Tensor):
        return tensors[index]
    return tuple(_rows(part, index) for part in tensors)
