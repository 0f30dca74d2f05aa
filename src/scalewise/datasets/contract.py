"""What scalewise asks of a data set, its own or a user's."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import Dataset

Batch: TypeAlias = tuple[Tensor, Tensor]
"""``(x, target)``: of one sample, or of many stacked along a first dimension."""


class BatchedDataset(Dataset[Batch]):
    """A map-style data set that makes whole batches; a sample is a batch of one."""

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Batch:
        x, target = self.__getitems__([range(len(self))[index]])  # from the end too
        return x[0], target[0]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """The samples at ``indices``, stacked."""
        raise NotImplementedError


class DividedData:
    """Data to train on and, as ``validation``, other samples to judge by, or None.

    ``train`` is a map-style data set; with ``__getitems__`` it hands out whole batches at once.
    Building one only checks its arguments. Both parts are read or made when one is first asked for,
    and are the same for the same arguments on every rank. One of ours with an argument
    ``train_samples`` or ``samples`` has at most so many: a batch that is larger is refused before
    anything starts.
    """

    sizes: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that a model must fit."""

    def divide(self) -> tuple[Dataset[Any], BatchedDataset | None]:
        """The parts to train on and to judge by; the second may be empty."""
        raise NotImplementedError

    @cached_property
    def _parts(self) -> tuple[Dataset[Any], BatchedDataset | None]:
        train, validation = self.divide()
        return train, validation if validation is not None and len(validation) else None

    @property
    def train(self) -> Any:
        return self._parts[0]

    @property
    def validation(self) -> BatchedDataset | None:
        return self._parts[1]

    def describe(self) -> dict[str, int]:
        """The sizes that a model must fit (``features``, ``vocabulary_size``, ...), if any."""
        return {name: getattr(self, name) for name in self.sizes}


class TensorPairs(BatchedDataset):
    """Row ``i`` of two tensors of the same length."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        if len(inputs) != len(targets):
            raise ValueError(f"targets: found {len(targets)} rows; allowed: {len(inputs)}")
        self.inputs = inputs
        self.targets = targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """The samples at ``indices``, stacked; whole numbers as 64-bit, as losses want them."""
        rows = rows_of(indices, self.inputs.device)
        # Not inputs[rows]: that wakes all threads for a few kB, and on a busy host waits for them.
        inputs, targets = (part.index_select(0, rows) for part in (self.inputs, self.targets))
        return _widened(inputs), _widened(targets)

    def to(self, device: torch.device) -> TensorPairs:
        """The same data in the memory of ``device``."""
        return type(self)(self.inputs.to(device), self.targets.to(device))


class TokenWindows(BatchedDataset):
    """Consecutive windows of a row of tokens; the target is the token after each.

    Window ``i`` is ``tokens[i * length : (i + 1) * length]`` and its target the same, one later.
    Windows do not overlap. ``every`` keeps one window in so many. Tokens of 16 bits are unsigned,
    though torch indexes them as int16.
    """

    def __init__(self, tokens: Tensor, length: int, every: int = 1) -> None:
        self._windows = tokens.unfold(0, length + 1, length)[::every]

    def __len__(self) -> int:
        return len(self._windows)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Windows and targets at ``indices``, each ``[samples, length]``."""
        rows = rows_of(indices, self._windows.device)
        windows = self._windows.index_select(0, rows).to(torch.int64)
        if self._windows.dtype == torch.int16:
            windows &= 0xFFFF
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def to(self, device: torch.device) -> TokenWindows:
        """The same data in the memory of ``device``."""
        moved = copy.copy(self)
        moved._windows = self._windows.to(device)
        return moved


def rows_of(indices: Sequence[int], device: torch.device) -> Tensor:
    """``indices`` where the data are; the host does not wait for the copy."""
    rows = torch.as_tensor(indices, dtype=torch.int64)
    return rows.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else rows


def _widened(values: Tensor) -> Tensor:
    return values if values.is_floating_point() else values.to(torch.int64)
