"""SPAM is AdamW until a gradient spikes or the momentum is reset."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from scalewise.optimizers.spike_aware import spam
from scalewise.optimizers.standard import adamw


def trained(build: Any, gradients: list[float], **arguments: Any) -> list[float]:
    """The value of one weight after each of ``gradients``."""
    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = build([weight], "cpu", lr=0.1, **arguments)
    values = []
    for gradient in gradients:
        weight.grad = torch.tensor([gradient])
        optimizer.step()
        values.append(weight.item())
    return values


def test_without_spikes_and_resets_it_is_adamw() -> None:
    gradients = [0.3, -0.2, 0.5, 0.1, -0.4]
    ours = trained(spam, gradients, weight_decay=0.1)
    assert ours == pytest.approx(trained(adamw, gradients, weight_decay=0.1, fused=False))


def test_a_spike_counts_as_the_largest_gradient_allowed() -> None:
    # After one gradient of 1 the corrected second moment is 1: the bound is sqrt(threshold).
    calm, bound = [1.0], 10.0
    spiked = trained(spam, [*calm, -1e6, 1.0], spike_threshold=bound**2)
    assert spiked == pytest.approx(trained(spam, [*calm, -bound, 1.0], spike_threshold=bound**2))
    assert spiked[1] != pytest.approx(trained(adamw, [*calm, -1e6, 1.0])[1])


def test_a_weight_whose_first_gradient_comes_late_still_learns() -> None:
    assert trained(spam, [0.0, 0.0, 0.5], weight_decay=0.0)[-1] < 1.0


def test_a_reset_forgets_the_past() -> None:
    begin = [0.3, -0.2, 0.5]
    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = spam([weight], "cpu", reset_interval=len(begin), warmup_steps=0)
    for gradient in [*begin, 0.25]:
        weight.grad = torch.tensor([gradient])
        optimizer.step()
    state = optimizer.state[weight]
    assert state["exp_avg"].item() == pytest.approx(0.1 * 0.25)
    assert state["exp_avg_sq"].item() == pytest.approx(0.001 * 0.25**2)


def test_after_a_reset_the_rate_climbs_from_nothing() -> None:
    values = [1.0, *trained(spam, [1.0] * 9, reset_interval=5, warmup_steps=4, weight_decay=0.0)]
    moved = [before - after for before, after in itertools.pairwise(values)]
    assert moved[:5] == pytest.approx([0.1] * 5, rel=1e-3)
    shares = [(1 - c) / 2 for c in (2**-0.5, 0.0, -(2**-0.5), -1.0)]
    assert moved[5:] == pytest.approx([0.1 * share for share in shares], rel=1e-3)


def test_it_goes_on_from_a_saved_state() -> None:
    gradients = [0.3, -0.2, 0.5, 0.1]
    weight = nn.Parameter(torch.tensor([1.0]))
    first = spam([weight], "cpu", lr=0.1, reset_interval=3, warmup_steps=1)
    for gradient in gradients[:2]:
        weight.grad = torch.tensor([gradient])
        first.step()
    second = spam([weight], "cpu", lr=0.1, reset_interval=3, warmup_steps=1)
    second.load_state_dict(first.state_dict())
    for gradient in gradients[2:]:
        weight.grad = torch.tensor([gradient])
        second.step()
    whole = trained(spam, gradients, reset_interval=3, warmup_steps=1)
    assert weight.item() == pytest.approx(whole[-1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"spike_threshold": 1.0}, "^spike_threshold: found 1.0; allowed: above 1$"),
        ({"reset_interval": 1}, "^reset_interval: found 1; allowed: at least 2$"),
        ({"reset_interval": 9, "warmup_steps": 9}, "^warmup_steps: found 9; allowed: 0 to 8"),
    ],
)
def test_ranges(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spam(nn.Linear(2, 2).parameters(), "cpu", **arguments)
