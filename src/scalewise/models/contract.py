"""What scalewise asks of a model, its own or a user's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor
from torchmetrics import MetricCollection

from scalewise.models.stages import Unit
from scalewise.models.tensor_cuts import TensorCuts


@runtime_checkable
class TrainableModel(Protocol):
    """An ``nn.Module`` with a loss. A batch is a tuple ``(x, target)``.

    A model may also have the methods of :class:`HasMetrics`, :class:`DeclaresFlops`,
    :class:`ChecksData`, :class:`SplitsIntoStages` and :class:`SplitsMatrices`; each is looked for
    on its own.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The output for the batch ``x`` of shape ``[samples, ...]``."""
        ...

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """A scalar: the mean over the samples of the batch."""
        ...


@runtime_checkable
class HasMetrics(Protocol):
    """A model that says how good its outputs are."""

    def metrics(self) -> MetricCollection:
        """Fresh metrics, each updated with ``(output, target)`` as ``loss`` gets them."""
        ...


@runtime_checkable
class DeclaresFlops(Protocol):
    """A model that knows what a sample costs."""

    def flops_per_sample(self) -> float | None:
        """Floating-point operations of one sample, forward and backward.

        A multiply-add is two operations. Only what the mathematics needs is counted: nothing that
        is computed twice, no element-wise work, no optimizer. None where no count is known.
        """
        ...


@runtime_checkable
class ChecksData(Protocol):
    """A model that can tell whether a data set fits before the first step."""

    def check_data(self, description: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` unless the model can train on data described so.

        ``description`` is what the data set's ``describe()`` returned; what it does not say is not
        checked.
        """
        ...


@runtime_checkable
class SplitsIntoStages(Protocol):
    """A model that ``strategy=pipeline`` can spread over devices."""

    def pipeline_units(self) -> list[Unit]:
        """The forward pass as a chain: calling the units one after another is ``forward``."""
        ...


@runtime_checkable
class SplitsMatrices(Protocol):
    """A model that ``strategy=tensor`` can spread over devices."""

    def tensor_cuts(self) -> TensorCuts:
        """Which of its matrices may be cut, and how."""
        ...
