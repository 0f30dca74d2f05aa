"""Builders of torch's own optimizers; Muon comes with AdamW for what it is not made for.

Where torch has a kernel that updates all parameters at once, it is used unless ``fused=false``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import torch
from pydantic import Field, NonNegativeFloat, NonPositiveFloat, PositiveFloat
from torch import nn
from torch.optim.optimizer import Optimizer, ParamsT

from scalewise.config import BelowOne

_BETAS = [0.9, 0.999]
Betas = Annotated[list[BelowOne], Field(min_length=2, max_length=2)]


def adam(
    params: ParamsT, lr: PositiveFloat = 1e-3, betas: Betas = _BETAS, eps: PositiveFloat = 1e-8,
    weight_decay: NonNegativeFloat = 0.0, amsgrad: bool = False, fused: bool | None = None,
) -> torch.optim.Adam:  # fmt: skip
    """Torch's Adam: weight decay is added to the gradient. Two buffers, three in AMSGrad."""
    settings = (lr, (betas[0], betas[1]), eps, weight_decay, amsgrad)
    return torch.optim.Adam(params, *settings, fused=fused is not False)


def adamw(
    params: ParamsT, lr: PositiveFloat = 1e-3, betas: Betas = _BETAS, eps: PositiveFloat = 1e-8,
    weight_decay: NonNegativeFloat = 0.01, amsgrad: bool = False, fused: bool | None = None,
) -> torch.optim.AdamW:  # fmt: skip
    """Torch's AdamW: weight decay apart from the gradient. Two buffers, three in AMSGrad."""
    settings = (lr, (betas[0], betas[1]), eps, weight_decay, amsgrad)
    return torch.optim.AdamW(params, *settings, fused=fused is not False)


def sgd(
    params: ParamsT,
    lr: PositiveFloat = 0.01,
    momentum: BelowOne = 0.9,
    weight_decay: NonNegativeFloat = 0.0,
    fused: bool | None = None,
) -> torch.optim.SGD:
    """Torch's SGD; one buffer of the size of the parameters where there is momentum."""
    held: list[Any] = list(params)
    bare = (one[1] if isinstance(one, tuple) else one for one in held)
    return torch.optim.SGD(
        held,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        # Torch's fused SGD has no rule for DTensors, its Adam has.
        fused=not any(hasattr(one, "placements") for one in bare) if fused is None else fused,
    )


def adafactor(
    params: ParamsT,
    lr: PositiveFloat = 1e-2,
    beta2_decay: NonPositiveFloat = -0.8,
    weight_decay: NonNegativeFloat = 0.0,
) -> torch.optim.Adafactor:
    """Torch's Adafactor (Shazeer and Stern, 2018).

    A matrix of r rows and c columns takes r + c numbers of state instead of Adam's 2 r c. There is
    no fused version, on any device.
    """
    return torch.optim.Adafactor(params, lr=lr, beta2_decay=beta2_decay, weight_decay=weight_decay)


_NOT_HIDDEN = ("embedding", "head", "positions")
"""Parts of a parameter's name that mark an input or output layer, which Muon is not made for."""


class JoinedOptimizer(Optimizer):
    """Several of torch's optimizers, each with parameters of its own, that step as one.

    Parameter groups and state are shared with the parts, not copied: a learning-rate schedule
    reaches every part, and whoever saves or counts the state finds all of it here.
    """

    def __init__(self, parts: list[Optimizer]) -> None:
        self._parts = parts
        super().__init__([group for part in parts for group in part.param_groups], defaults={})
        self._share()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        begin = 0
        for part in self._parts:
            end = begin + len(part.param_groups)
            part.param_groups = self.param_groups[begin:end]
            part.state = self.state
            begin = end

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of each part. ``closure`` recomputes the loss, once for all."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            part.step()
        return loss


def muon(
    params: ParamsT,
    lr: PositiveFloat = 2e-2,
    momentum: BelowOne = 0.95,
    weight_decay: NonNegativeFloat = 0.1,
    adamw_lr: PositiveFloat = 1e-3,
    adamw_weight_decay: NonNegativeFloat = 0.01,
) -> Optimizer:
    """Torch's Muon (Jordan et al., 2024) for hidden matrices, AdamW for the rest.

    ``params`` must come with names (``module.named_parameters()``): a matrix counts as hidden
    unless its name says embedding, positions or head. One buffer for a hidden matrix, two for the
    rest. Raises ValueError without names and where torch has no Muon (before 2.9).
    """
    if not hasattr(torch.optim, "Muon"):
        raise ValueError(f"_target_: found torch {torch.__version__}; allowed: muon needs 2.9")
    hidden: list[tuple[str, nn.Parameter]] = []
    rest: list[tuple[str, nn.Parameter]] = []
    for item in params:
        if not isinstance(item, tuple):
            raise ValueError(
                "params: found parameters without names; allowed: named_parameters(), by which "
                "muon tells hidden matrices from embeddings"
            )
        name, parameter = item
        assert isinstance(parameter, nn.Parameter)
        is_hidden = parameter.ndim == 2 and not any(part in name for part in _NOT_HIDDEN)
        (hidden if is_hidden else rest).append((name, parameter))
    parts: list[Optimizer] = []
    if hidden:
        parts.append(torch.optim.Muon(hidden, lr=lr, momentum=momentum, weight_decay=weight_decay))
    if rest:
        parts.append(adamw(rest, lr=adamw_lr, weight_decay=adamw_weight_decay))
    return JoinedOptimizer(parts)
