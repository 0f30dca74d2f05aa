"""Twins of real data, of the same shapes and types, for machines without them.

They take as long to train on and can be learned, but what a model reaches on them says nothing
about the real data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor
from torch.utils.data import Dataset

from scalewise.config import require
from scalewise.datasets.contract import BatchedDataset, DividedData, TensorPairs, TokenWindows

_FLOATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class StreamRows(Dataset[Any]):
    """Streams, their times and the times wanted, handed out as whole batches."""

    def __init__(self, *parts: Any) -> None:
        self.streams, self.times, self.targets = parts

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: Any) -> Any:
        streams, times = (tuple(one[index] for one in of) for of in (self.streams, self.times))
        return streams, times, self.targets[index]

    def __getitems__(self, indices: Sequence[int]) -> Any:
        return self[torch.as_tensor(indices, dtype=torch.int64)]


@dataclass
class SensorStreams(DividedData):
    """Streams of features, each with times of its own, and the times they are wanted at.

    A sample covers one second. ``lengths[i]`` samples of ``widths[i]`` features make stream ``i``;
    their times are even with some jitter, as a sensor's are. A batch is ``(streams, times,
    targets)``, see :data:`scalewise.operations.sensors.FusionBatch`.
    """

    lengths: list[PositiveInt]
    widths: Annotated[list[PositiveInt], Field(min_length=1)]
    targets: PositiveInt = 50
    samples: PositiveInt = 1024
    dtype: Literal["fp32", "bf16", "fp16"] = "bf16"
    seed: int = 42

    def __post_init__(self) -> None:
        given, widths = len(self.lengths), len(self.widths)
        require("lengths", self.lengths, given == widths, f"as many as there are widths, {widths}")

    def divide(self) -> tuple[StreamRows, None]:
        generator = torch.Generator().manual_seed(self.seed)
        streams = tuple(
            torch.randn(self.samples, length, width, generator=generator).to(_FLOATS[self.dtype])
            for length, width in zip(self.lengths, self.widths, strict=True)
        )
        times = tuple(self._times(length, generator) for length in self.lengths)
        return StreamRows(streams, times, self._times(self.targets, generator)), None

    def _times(self, count: int, generator: torch.Generator) -> Tensor:
        """``[samples, count]`` ascending times in seconds: even steps, moved by up to a third."""
        jitter = torch.rand(self.samples, count, generator=generator) - 0.5
        return (torch.arange(count) + jitter / 1.5) / count


@dataclass
class PointClouds(DividedData):
    """Clouds of points around a few centres, some outside the grid, with features.

    A sample is one cloud. A batch is ``(points, features)``: fp32 ``[B, points, 3]`` and
    ``[B, points, features]``.
    """

    points: PositiveInt = 500_000
    features: PositiveInt = 8
    spread: PositiveFloat = 2.0
    samples: PositiveInt = 16
    seed: int = 42

    def divide(self) -> tuple[TensorPairs, None]:
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.samples, self.points)
        points = torch.randn(*shape, 3, generator=generator).mul_(self.spread)
        return TensorPairs(points, torch.randn(*shape, self.features, generator=generator)), None


class _Synthetic(DividedData):
    """Parts that are drawn apart; a subclass draws one."""

    train_samples: int
    validation_samples: int
    seed: int

    def _part(self, samples: int, part: int) -> BatchedDataset:
        raise NotImplementedError

    def divide(self) -> tuple[BatchedDataset, BatchedDataset | None]:
        validation = self._part(self.validation_samples, 2) if self.validation_samples else None
        return self._part(self.train_samples, 1), validation

    def _generator(self, part: int) -> torch.Generator:
        """The source of randomness of one part: 0 is what they share, 1 training, 2 the other."""
        return torch.Generator().manual_seed(3 * self.seed + part)


@dataclass
class SyntheticTokens(_Synthetic):
    """Windows of tokens where each depends on the one before: like text, and learnable."""

    sizes = ("vocabulary_size", "sequence_length")
    vocabulary_size: Annotated[int, Field(ge=4)] = 50_304
    sequence_length: PositiveInt = 1024
    train_samples: PositiveInt = 4096
    validation_samples: NonNegativeInt = 64
    seed: int = 42

    def _part(self, samples: int, part: int) -> TokenWindows:
        """A walk over the vocabulary in small steps: the next token is one of four."""
        count = samples * self.sequence_length + 1
        steps = torch.randint(0, 4, (count,), generator=self._generator(part))
        tokens = torch.cumsum(steps, dim=0).remainder(self.vocabulary_size)
        return TokenWindows(tokens.to(torch.int32), self.sequence_length)


@dataclass
class SyntheticText(_Synthetic):
    """Texts of numbered words with a class that a quarter of the words point to."""

    sizes = ("vocabulary_size", "max_tokens", "classes")
    vocabulary_size: int = 20_000
    max_tokens: PositiveInt = 128
    classes: Annotated[int, Field(ge=2)] = 4
    train_samples: PositiveInt = 6080
    validation_samples: NonNegativeInt = 1520
    seed: int = 42

    def __post_init__(self) -> None:
        least = 2 + self.classes
        enough = self.vocabulary_size >= least
        require("vocabulary_size", self.vocabulary_size, enough, f"at least {least}")

    def _part(self, samples: int, part: int) -> TensorPairs:
        random = self._generator(part)
        shape = (samples, self.max_tokens)
        target = torch.randint(0, self.classes, (samples,), generator=random)
        words = torch.randint(2, self.vocabulary_size, shape, generator=random)
        # A word belongs to the class its number leaves as a remainder.
        owned = words - words.remainder(self.classes) + target.unsqueeze(1)
        owned = torch.where(owned < self.vocabulary_size, owned, owned - self.classes)
        telling = torch.rand(shape, generator=random) < 0.25
        return TensorPairs(torch.where(telling & (owned >= 2), owned, words).int(), target)
