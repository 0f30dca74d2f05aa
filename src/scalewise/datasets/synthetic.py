"""Twins of real data, of the same shapes and types, for machines without them.

They take as long to train on and can be learned, but what a model reaches on them says nothing
about the real data: ``describe()`` calls them synthetic, and so does every record.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from scalewise.config import require, require_at_least
from scalewise.datasets.contract import Batch, BatchedDataset, TensorPairs, TokenWindows

_FLOATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class _Generated:
    """What is drawn from a seed, and described without drawing it."""

    def __init__(self, train_samples: int, validation_samples: int, seed: int) -> None:
        self.train_samples = train_samples
        self.validation_samples = validation_samples
        self.seed = seed

    def shape(self) -> dict[str, int]:
        """What a model must fit."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        return {
            "source": f"generated, seed {self.seed}",
            "synthetic": True,
            "train_samples": self.train_samples,
            "validation_samples": self.validation_samples,
            **self.shape(),
        }


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


class SensorStreams(_Generated):
    """Streams of features, each with times of its own, and the times they are wanted at.

    A sample covers one second. ``lengths[i]`` samples of ``widths[i]`` features make stream ``i``;
    their times are even with some jitter, as a sensor's are. A batch is ``(streams, times,
    targets)``, see :data:`scalewise.operations.sensors.FusionBatch`.
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
        require_at_least(1, targets=targets, samples=samples)
        require("dtype", dtype, dtype in _FLOATS, ", ".join(_FLOATS))
        super().__init__(samples, 0, seed)
        self.lengths, self.widths, self.targets, self.dtype = lengths, widths, targets, dtype
        self.validation = None

    @cached_property
    def train(self) -> BatchRows:
        generator = torch.Generator().manual_seed(self.seed)
        streams = tuple(
            torch.randn(self.train_samples, length, width, generator=generator).to(
                _FLOATS[self.dtype]
            )
            for length, width in zip(self.lengths, self.widths, strict=True)
        )
        times = tuple(self._times(length, generator) for length in self.lengths)
        return BatchRows((streams, times, self._times(self.targets, generator)))

    def _times(self, count: int, generator: torch.Generator) -> Tensor:
        """``[samples, count]`` ascending times in seconds: even steps, moved by up to a third."""
        jitter = torch.rand(self.train_samples, count, generator=generator) - 0.5
        return (torch.arange(count) + jitter / 1.5) / count

    def shape(self) -> dict[str, int]:
        return {"fused_features": sum(self.widths)}


class PointClouds(_Generated):
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
        require_at_least(1, points=points, features=features)
        require("spread", spread, spread > 0, "above 0")
        require_at_least(1, samples=samples)
        super().__init__(samples, 0, seed)
        self.points, self.features, self.spread = points, features, spread
        self.validation = None

    @cached_property
    def train(self) -> BatchRows:
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.train_samples, self.points)
        points = torch.randn(*shape, 3, generator=generator).mul_(self.spread)
        return BatchRows((points, torch.randn(*shape, self.features, generator=generator)))

    def shape(self) -> dict[str, int]:
        return {"points_per_sample": self.points, "features": self.features}


def _first(tensors: Any) -> Tensor:
    return tensors if isinstance(tensors, Tensor) else _first(tensors[0])


def _rows(tensors: Any, index: Tensor) -> Any:
    if isinstance(tensors, Tensor):
        return tensors[index]
    return tuple(_rows(part, index) for part in tensors)


class _Synthetic(_Generated):
    """Parts that are drawn apart; a subclass draws one."""

    def __init__(self, train_samples: int, validation_samples: int, seed: int) -> None:
        require_at_least(1, train_samples=train_samples)
        require_at_least(0, validation_samples=validation_samples)
        super().__init__(train_samples, validation_samples, seed)

    def _part(self, samples: int, part: int) -> BatchedDataset:
        raise NotImplementedError

    @cached_property
    def train(self) -> BatchedDataset:
        return self._part(self.train_samples, 1)

    @cached_property
    def validation(self) -> BatchedDataset | None:
        return self._part(self.validation_samples, 2) if self.validation_samples else None

    def _generator(self, part: int) -> torch.Generator:
        """The source of randomness of one part: 0 is what they share, 1 training, 2 the other."""
        return torch.Generator().manual_seed(3 * self.seed + part)


class SyntheticTokens(_Synthetic):
    """Windows of tokens where each depends on the one before: like text, and learnable."""

    def __init__(
        self,
        vocabulary_size: int = 50_304,
        sequence_length: int = 1024,
        train_samples: int = 4096,
        validation_samples: int = 64,
        seed: int = 42,
    ) -> None:
        super().__init__(train_samples, validation_samples, seed)
        require_at_least(4, vocabulary_size=vocabulary_size)
        require_at_least(1, sequence_length=sequence_length)
        self.vocabulary_size = vocabulary_size
        self.sequence_length = sequence_length

    def _part(self, samples: int, part: int) -> TokenWindows:
        """A walk over the vocabulary in small steps: the next token is one of four."""
        count = samples * self.sequence_length + 1
        steps = torch.randint(0, 4, (count,), generator=self._generator(part))
        tokens = torch.cumsum(steps, dim=0).remainder(self.vocabulary_size)
        return TokenWindows(tokens.to(torch.int32), self.sequence_length)

    def shape(self) -> dict[str, int]:
        return {"vocabulary_size": self.vocabulary_size, "sequence_length": self.sequence_length}


class SyntheticText(_Synthetic):
    """Texts of numbered words with a class that a quarter of the words point to."""

    def __init__(
        self,
        vocabulary_size: int = 20_000,
        max_tokens: int = 128,
        classes: int = 4,
        train_samples: int = 6080,
        validation_samples: int = 1520,
        seed: int = 42,
    ) -> None:
        super().__init__(train_samples, validation_samples, seed)
        require_at_least(2, classes=classes)
        enough = vocabulary_size >= 2 + classes
        require("vocabulary_size", vocabulary_size, enough, f"at least {2 + classes}")
        require_at_least(1, max_tokens=max_tokens)
        self.vocabulary_size = vocabulary_size
        self.max_tokens = max_tokens
        self.classes = classes

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

    def shape(self) -> dict[str, int]:
        return {
            "vocabulary_size": self.vocabulary_size,
            "max_tokens": self.max_tokens,
            "classes": self.classes,
        }


class SyntheticImages(_Synthetic):
    """Noisy images around one pattern for each class, stored as bytes like decoded photographs."""

    def __init__(
        self,
        image_size: int = 224,
        classes: int = 1000,
        train_samples: int = 512,
        validation_samples: int = 64,
        seed: int = 42,
    ) -> None:
        super().__init__(train_samples, validation_samples, seed)
        require("image_size", image_size, image_size >= 8, "at least 8 pixels")
        require_at_least(2, classes=classes)
        self.image_size = image_size
        self.classes = classes

    @cached_property
    def _patterns(self) -> Tensor:
        """``[classes, 3, 8, 8]``: coarse, so that a thousand of them stay small."""
        return torch.randint(0, 128, (self.classes, 3, 8, 8), generator=self._generator(0))

    def _part(self, samples: int, part: int) -> ByteImages:
        random = self._generator(part)
        target = torch.randint(0, self.classes, (samples,), generator=random)
        shape = (samples, 3, self.image_size, self.image_size)
        images = torch.randint(0, 128, shape, generator=random, dtype=torch.uint8)
        cells = torch.arange(self.image_size) * 8 // self.image_size
        for image, label in zip(images, target, strict=True):
            image += self._patterns[label][:, cells][:, :, cells].to(torch.uint8)
        return ByteImages(images, target)

    def shape(self) -> dict[str, int]:
        return {"image_size": self.image_size, "classes": self.classes}


class ByteImages(BatchedDataset):
    """Images stored as bytes ``[samples, 3, height, width]``, handed out around zero."""

    def __init__(self, images: Tensor, targets: Tensor) -> None:
        self.images = images
        self.targets = targets

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """The images at ``indices`` as fp32 from -1 to 1, and their classes."""
        rows = torch.as_tensor(indices, dtype=torch.int64)
        return self.images[rows].float() / 127.5 - 1, self.targets[rows]
