"""SPAM: AdamW that clips gradient spikes and forgets its momentum now and then."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from scalewise.config import require, require_at_least
from scalewise.optimizers.standard import check_rates, checked_betas


class SpikeAwareAdamW(Optimizer):
    """Spike-Aware Adam with Momentum Reset (Huang et al., 2025, arXiv:2501.06842), decoupled decay.

    With ``t`` steps since the last reset, ``v`` the second moment and ``theta`` the threshold:

    * a gradient of ``g ** 2 > theta * v / (1 - beta2 ** (t - 1))`` is cut to that bound with its
      sign kept. The paper compares with ``v`` as it stands; the correction for its short history
      lets the comparison hold from the second step after a reset on. A ``v`` of exactly 0 has seen
      no gradient and bounds nothing: else a word that first appears late could never be learnt.
    * every ``reset_interval`` steps both moments are set to 0 and ``t`` starts again.
    * after a reset the learning rate climbs from 0 along half a cosine for ``warmup_steps`` steps.

    Two buffers of the size of the parameters, like Adam. :func:`spam` has the settings.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step. ``closure`` recomputes the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        resets, since_reset = divmod(state["step"], group["reset_interval"])
        state["step"] += 1
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        if resets and since_reset == 0:
            mean.zero_()
            square.zero_()
        beta1, beta2 = group["betas"]
        if since_reset:
            bound = square.mul(group["spike_threshold"] / (1 - beta2**since_reset)).sqrt_()
            bound.masked_fill_(square == 0, math.inf)
            gradient = gradient.clamp(-bound, bound)
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        steps = since_reset + 1
        lr = group["lr"]
        if resets and steps <= group["warmup_steps"]:
            lr *= (1 - math.cos(math.pi * steps / group["warmup_steps"])) / 2
        parameter.mul_(1 - lr * group["weight_decay"])
        scale = square.div(1 - beta2**steps).sqrt_().add_(group["eps"])
        parameter.addcdiv_(mean, scale, value=-lr / (1 - beta1**steps))


def spam(
    params: ParamsT,
    device_kind: str,
    lr: float = 1e-3,
    betas: list[float] = [0.9, 0.999],  # noqa: B006 - never changed
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    spike_threshold: float = 5000.0,
    reset_interval: int = 500,
    warmup_steps: int = 150,
) -> SpikeAwareAdamW:
    """:class:`SpikeAwareAdamW` with the paper's threshold, interval and warm-up as defaults."""
    check_rates(lr, weight_decay)
    require("eps", eps, eps > 0, "above 0")
    require("spike_threshold", spike_threshold, spike_threshold > 1, "above 1")
    require_at_least(2, reset_interval=reset_interval)
    fits = 0 <= warmup_steps < reset_interval
    allowed = f"0 to {reset_interval - 1}, below reset_interval"
    require("warmup_steps", warmup_steps, fits, allowed)
    settings = {
        "lr": lr,
        "betas": checked_betas(betas),
        "eps": eps,
        "weight_decay": weight_decay,
        "spike_threshold": spike_threshold,
        "reset_interval": reset_interval,
        "warmup_steps": warmup_steps,
    }
    return SpikeAwareAdamW(params, settings)
