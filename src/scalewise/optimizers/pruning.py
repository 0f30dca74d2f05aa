"""Pruning while training: which weights are set to 0, and by which score.

A pruner hangs on the optimizer's own step hooks, so that it works with any optimizer and any
training loop, and its cost is part of the optimizer's time. Replicas under DDP hold equal weights,
gradients and optimizer states; each finds the same weights by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from scalewise.optimizers.pruning_schedule import PruningConfig

_KEPT = ("embedding", "positions")
"""Parts of a parameter's name that are tables of vectors, not weights between layers."""


class UnprunableError(ValueError):
    """The pruning asked for does not fit the model or the optimizer."""


class Pruner:
    """Keeps the lowest-scored weights of every matrix at 0.

    Args:
        config: score, sparsity and schedule.
        named_parameters: of the network. Matrices and kernels are pruned; biases, norms and tables
            of embeddings or positions are not.
        optimizer: whose steps it follows.

    Raises :class:`UnprunableError` where the optimizer keeps no state of the kind that the score
    needs, and where there is nothing to prune.
    """

    def __init__(
        self,
        config: PruningConfig,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        optimizer: Optimizer,
    ) -> None:
        self.config = config
        self.parameters = [
            parameter
            for name, parameter in named_parameters
            if parameter.requires_grad
            and parameter.ndim >= 2
            and not any(part in name for part in _KEPT)
        ]
        if not self.parameters:
            raise UnprunableError(
                f"pruning: found {config.name!r}, but the model has no weight matrix; allowed: none"
            )
        if config.kind == "adamw_state" and "betas" not in optimizer.defaults:
            raise UnprunableError(_no_second_moment(optimizer))
        self._steps = 0
        self._masks: list[Tensor] = []
        self._movement: list[Tensor] = []
        if config.kind == "movement":
            self._movement = [torch.zeros_like(p) for p in self.parameters]
            optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)
        # The records ask the optimizer what was pruned with it.
        optimizer.scalewise_pruner = self  # type: ignore[attr-defined]

    def state_bytes(self) -> int:
        """Bytes kept beside the optimizer's state: the masks, and movement's sums."""
        return sum(t.numel() * t.element_size() for t in (*self._masks, *self._movement))

    @torch.no_grad()
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for score, parameter in zip(self._movement, self.parameters, strict=True):
            if parameter.grad is not None:
                score.addcmul_(parameter, parameter.grad, value=-1)

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._steps += 1
        if self.config.prunes_at(self._steps):
            sparsity = self.config.sparsity_at(self._steps)
            self._masks = [
                _keep(self._score(i, parameter, optimizer), parameter, sparsity)
                for i, parameter in enumerate(self.parameters)
            ]
        if self._masks:
            tensors: list[Tensor] = list(self.parameters)
            torch._foreach_mul_(tensors, self._masks)

    def _score(self, index: int, parameter: Tensor, optimizer: Optimizer) -> Tensor:
        if self.config.kind == "magnitude":
            return parameter.abs()
        if self.config.kind == "movement":
            return self._movement[index]
        second_moment = optimizer.state.get(parameter, {}).get("exp_avg_sq")
        if second_moment is None:
            raise UnprunableError(_no_second_moment(optimizer))
        return parameter.square().mul_(second_moment)


def _no_second_moment(optimizer: Optimizer) -> str:
    return (
        f"pruning: found adamw_state with {type(optimizer).__name__}, which keeps no second moment "
        "of each weight; allowed: adam, adamw, adamw_amsgrad or spam, or pruning=magnitude or "
        "movement"
    )


def _keep(score: Tensor, parameter: Tensor, sparsity: float) -> Tensor:
    """1 for the weights to keep and 0 for the ``sparsity`` of them with the lowest score.

    What is 0 already goes first: a score of 0 is not the lowest that movement can give.
    """
    count = int(sparsity * score.numel())
    mask = torch.ones_like(parameter)
    if count:
        ranked = torch.where(parameter == 0, -torch.inf, score).flatten()
        mask.view(-1)[ranked.topk(count, largest=False, sorted=False).indices] = 0
    return mask
