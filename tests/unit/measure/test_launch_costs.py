"""Launches where there is nothing to launch on."""

from __future__ import annotations

import torch

from scalewise.doctor.compute import launch_costs

_CPU = torch.device("cpu")


def test_a_cpu_has_only_the_cost_of_a_call() -> None:
    (cost,) = launch_costs(_CPU, 0.02)
    assert cost.kind == "enqueue" and 0.1 < cost.timing.median_us < 1000
