"""Map-style data sets over tensors in memory that hand out a batch as one selection."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from scalewise.datasets.contract import Batch


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
