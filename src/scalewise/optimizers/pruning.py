"""Pruning while training: which weights are set to 0, and by which score.

A pruner hangs on the optimizer's own step hooks, so that it works with any optimizer and any
training loop, and its cost is part of the optimizer's time. Replicas under DDP hold equal weights,
gradients and optimizer states; each finds the same weights by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from scalewise.config import PruningConfig, no_second_moment

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
            raise UnprunableError(no_second_moment(type(optimizer).__name__))
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

    def state_dict(self) -> dict[str, Any]:
        """What a run that goes on needs: optimizer steps done, masks, and movement's sums."""
        return {
            "steps": self._steps,
            "masks": [mask.bool() for mask in self._masks],
            "movement": list(self._movement),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state_dict`. Raises :class:`UnprunableError` for another model's."""
        shapes = [parameter.shape for parameter in self.parameters]
        masks: Sequence[Tensor] = state["masks"]
        movement: Sequence[Tensor] = state["movement"]
        for name, saved in (("masks", masks), ("movement", movement)):
            if saved and [tensor.shape for tensor in saved] != shapes:
                raise UnprunableError(
                    f"pruning: found {name} of {len(saved)} weights in another order or of other "
                    f"shapes than the model's {len(shapes)}; allowed: the model's own state"
                )
        if len(movement) != len(self._movement):
            raise UnprunableError(
                f"pruning: found a state of another score than {self.config.kind}; allowed: the "
                "score that the run began with"
            )
        self._steps = int(state["steps"])
        self._masks = [mask.to(p) for mask, p in zip(masks, self.parameters, strict=False)]
        for own, sum_so_far in zip(self._movement, movement, strict=True):
            own.copy_(sum_so_far)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Score by this step's gradients: Lightning's are made by the closure it steps with."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._add_movement()
            return None

        def scored() -> Any:
            loss = closure()
            self._add_movement()
            return loss

        return args[:1], {**kwargs, "closure": scored}

    @torch.no_grad()
    def _add_movement(self) -> None:
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
            raise UnprunableError(no_second_moment(type(optimizer).__name__))
        return parameter.square().mul_(second_moment)


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
