"""What scalewise asks of a model, its own or a user's."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from scalewise.config import require


@runtime_checkable
class TrainableModel(Protocol):
    """An ``nn.Module`` with a loss. A batch is a tuple ``(x, target)``.

    A model may also have these methods, and that of :class:`SplitsIntoStages`; each is looked for
    on its own.

    * ``metrics() -> MetricCollection``: fresh metrics, each updated with ``(output, target)`` as
      ``loss`` gets them;
    * ``flops_per_sample() -> float | None``: floating-point operations of one sample, forward and
      backward, a multiply-add being two. Only what the mathematics needs is counted: nothing that
      is computed twice, no element-wise work, no optimizer. None where no count is known;
    * ``check_data(description)``: raise ``ValueError`` unless the model can train on data whose
      ``describe()`` returned ``description``; what it does not say is not checked.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The output for the batch ``x`` of shape ``[samples, ...]``."""
        ...

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """A scalar: the mean over the samples of the batch."""
        ...


def returns_loss(network: Any) -> bool:
    """Whether a network, or its class, is called as Hugging Face's are, and returns its loss.

    ``forward(**batch)``, or one with a parameter ``labels``, returns an object with ``.loss``.
    """
    if callable(getattr(network, "loss", None)):
        return False
    parameters = inspect.signature(network.forward).parameters
    return "labels" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def without_loss(network: Any) -> str | None:
    """Why a network, or its class, cannot be trained: it says no loss; None where it does."""
    runs_only_forward = getattr(network, "forward_only", False)
    if runs_only_forward or callable(getattr(network, "loss", None)) or returns_loss(network):
        return None
    return (
        "which has no method loss(output, target); allowed: an nn.Module that has one, one whose "
        "forward(**batch) returns an object with .loss, or a LightningModule"
    )


@runtime_checkable
class SplitsIntoStages(Protocol):
    """A model that ``strategy=pipeline`` can spread over devices."""

    def pipeline_units(self) -> list[Unit]:
        """The forward pass as a chain: calling the units one after another is ``forward``."""
        ...


@dataclass(frozen=True)
class Unit:
    """What is never cut: a link of the chain that a model's forward is.

    The first unit takes the batch's input; every other one takes the output of the unit before it,
    one floating-point tensor whose first dimension counts samples.
    """

    module: nn.Module
    flops: float
    """Operations of one sample, forward and backward: what the stages are balanced by."""
    needs_input: bool = False
    """Called as ``module(hidden, x)`` with the batch's input beside it, e.g. for a mask."""


class Stage(nn.Module):
    """A run of units. Every stage is handed the batch's input; the first makes its start of it."""

    def __init__(self, units: Sequence[Unit]) -> None:
        super().__init__()
        self.units = nn.ModuleList(unit.module for unit in units)
        self._needs_input = [unit.needs_input for unit in units]

    def forward(self, hidden: Tensor, x: Tensor) -> Tensor:
        """From what the stage before put out (for the first: ``x``) to this one's output."""
        for unit, needs_input in zip(self.units, self._needs_input, strict=True):
            hidden = unit(hidden, x) if needs_input else unit(hidden)
        return hidden


def split(units: Sequence[Unit], stages: int) -> list[Stage]:
    """``units`` as ``stages`` modules in order, the dearest of them as cheap as can be.

    Parameters that several units share are shared by their stages. Raises ValueError where there
    are fewer units than stages.
    """
    require("stages", stages, 1 <= stages <= len(units), f"1 to {len(units)} for this model")
    return [Stage(units[r.start : r.stop]) for r in balance([u.flops for u in units], stages)]


def balance(costs: Sequence[float], stages: int) -> list[range]:
    """Consecutive, non-empty ranges over ``costs`` whose largest sum is as small as possible.

    The linear partition problem, by dynamic programming.
    """
    sums = [0.0, *accumulate(costs)]

    @cache
    def best(count: int, end: int) -> tuple[float, int]:
        """The smallest largest sum of ``count`` ranges up to ``end``; where the last begins."""
        if count == 1:
            return sums[end], 0
        begins = range(count - 1, end)
        return min((max(best(count - 1, i)[0], sums[end] - sums[i]), i) for i in begins)

    ranges, end = [], len(costs)
    for count in range(stages, 0, -1):
        _, begin = best(count, end)
        ranges.append(range(begin, end))
        end = begin
    return ranges[::-1]
