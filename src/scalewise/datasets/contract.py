"""What scalewise asks of a data set, its own or a user's."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import Dataset

from scalewise.config import DatasetError, require

Batch: TypeAlias = tuple[Tensor, Tensor]
"""``(x, target)``: of one sample, or of many stacked along a first dimension."""


@runtime_checkable
class TrainingData(Protocol):
    """Data to train on and data to judge by.

    Building one only checks its arguments. The data are read or made when ``train`` or
    ``validation`` is first asked for, and are the same for the same arguments on every rank.
    One of ours whose arguments alone tell its size says it as ``train_samples``: a batch that is
    too large is refused before anything starts.
    """

    @property
    def train(self) -> Dataset[Batch]:
        """A map-style data set; with ``__getitems__`` it hands out whole batches at once."""
        ...

    @property
    def validation(self) -> Dataset[Batch] | None:
        """The same of other samples, or None."""
        ...

    def describe(self) -> dict[str, Any]:
        """Sizes and origin.

        ``source``, ``synthetic``, ``train_samples`` and ``validation_samples`` always; what a
        model must fit (``features``, ``vocabulary_size``, ...) where there is such a thing.
        """
        ...


# Map-style data sets over tensors in memory that hand out a batch as one selection.


class TensorPairs(Dataset[Batch]):
    """Row ``i`` of two tensors of the same length."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        if len(inputs) != len(targets):
            raise ValueError(f"targets: found {len(targets)} rows; allowed: {len(inputs)}")
        self.inputs = inputs
        self.targets = targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Batch:
        x, target = self.__getitems__([index])
        return x[0], target[0]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """The samples at ``indices``, stacked; whole numbers as 64-bit, as losses want them."""
        rows = _rows(indices, self.inputs.device)
        return _widened(self.inputs[rows]), _widened(self.targets[rows])

    def to(self, device: torch.device) -> TensorPairs:
        """The same data in the memory of ``device``."""
        return TensorPairs(self.inputs.to(device), self.targets.to(device))


class TokenWindows(Dataset[Batch]):
    """Consecutive windows of a row of tokens; the target is the token after each.

    Window ``i`` is ``tokens[i * length : (i + 1) * length]`` and its target the same, one later.
    Windows do not overlap. ``every`` keeps one window in so many.
    """

    def __init__(self, tokens: Tensor, length: int, every: int = 1) -> None:
        if len(tokens) <= length:
            raise ValueError(f"sequence_length: found {length}; allowed: below {len(tokens)}")
        self._windows = tokens.unfold(0, length + 1, length)[::every]

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> Batch:
        x, target = self.__getitems__([index])
        return x[0], target[0]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Windows and targets at ``indices``, each ``[samples, length]``."""
        windows = self._windows[_rows(indices, self._windows.device)].to(torch.int64)
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def to(self, device: torch.device) -> TokenWindows:
        """The same data in the memory of ``device``."""
        moved = copy.copy(self)
        moved._windows = self._windows.to(device)
        return moved


def _rows(indices: Sequence[int], device: torch.device) -> Tensor:
    """``indices`` where the data are; the host does not wait for the copy."""
    rows = torch.as_tensor(indices, dtype=torch.int64)
    return rows.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else rows


def _widened(values: Tensor) -> Tensor:
    return values if values.is_floating_point() else values.to(torch.int64)


# What the data sets of bytes share: windows, a limit on validation, a fingerprint.


VOCABULARY_SIZE = 256
"""A token is a byte."""


def check_windows(sequence_length: int, max_validation_samples: int | None) -> None:
    """Refuse lengths and limits below one."""
    require("sequence_length", sequence_length, sequence_length >= 1, "at least 1")
    require(
        "max_validation_samples",
        max_validation_samples,
        max_validation_samples is None or max_validation_samples >= 1,
        "at least 1, or null for no limit",
    )


class ByteParts:
    """Bytes to train on and bytes to judge by, cut into windows."""

    def __init__(
        self,
        train: bytes,
        validation: bytes,
        sequence_length: int,
        max_validation_samples: int | None,
        source: str,
    ) -> None:
        self.train = _windows(train, sequence_length, None, source)
        self.validation = (
            _windows(validation, sequence_length, max_validation_samples, source)
            if validation
            else None
        )
        self._bytes = (train, validation)
        self._sequence_length = sequence_length
        self._source = source

    def describe(self) -> dict[str, Any]:
        """Sizes, and a hash of the data: another interpreter has another standard library."""
        digest = hashlib.sha256(b"".join(self._bytes)).hexdigest()
        return {
            "source": self._source,
            "synthetic": False,
            "train_samples": len(self.train),
            "validation_samples": len(self.validation) if self.validation is not None else 0,
            "sequence_length": self._sequence_length,
            "vocabulary_size": VOCABULARY_SIZE,
            "train_bytes": len(self._bytes[0]),
            "validation_bytes": len(self._bytes[1]),
            "sha256": digest,
        }


def join(texts: Sequence[bytes]) -> bytes:
    """Texts after one another, each ended by a zero byte."""
    return b"".join(text + b"\0" for text in texts)


def _windows(data: bytes, length: int, limit: int | None, source: str) -> TokenWindows:
    if len(data) <= length:
        raise DatasetError(
            f"dataset.sequence_length: found {length}; allowed: below {len(data)}, "
            f"the bytes in a part of {source}"
        )
    tokens = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    count = (len(data) - 1) // length
    every = 1 if limit is None else -(-count // limit)
    return TokenWindows(tokens, length, every)
