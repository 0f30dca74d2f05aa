"""What scalewise asks of a data set, its own or a user's."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

from torch import Tensor
from torch.utils.data import Dataset

from scalewise.datasets.errors import DatasetError

__all__ = ["Batch", "DatasetError", "TrainingData"]

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
