"""What pruning was asked for, and whether the run came as far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewise.analysis.runs import Configuration

_NEAR_ENOUGH = 0.01
"""Share of the weights by which the target may be missed: each matrix rounds to whole weights."""


def pruning_word(config: Configuration) -> str | None:
    """``pruning=magnitude (sparsity 0.5)``; None where nothing prunes."""
    asked = _asked(config)
    if asked is None:
        return None
    sparsity = asked.get("sparsity")
    return f"pruning={config.name('pruning')}" + (
        "" if sparsity is None else f" (sparsity {sparsity})"
    )


def pruning_shortfall(config: Configuration) -> str | None:
    """How far the runs stayed from the sparsity they were to reach, and why; None if they did."""
    asked, reached = _asked(config), config.estimate("pruned_share")
    if asked is None or reached is None or "sparsity" not in asked:
        return None
    sparsity = float(asked["sparsity"])
    if reached.value >= sparsity - _NEAR_ENOUGH:
        return None
    text = f"pruned to {reached.value:.0%} of {sparsity:.0%} configured".replace("%", " %")
    steps = max(r.steps_completed for run in config.runs if run.cell.result
                for r in run.cell.result.ranks)  # fmt: skip
    end = asked.get("end_step")
    if end is not None and steps < int(end):
        text += f": pruning.end_step={end} lies beyond the run's {steps:,} steps"
    return text


def _asked(config: Configuration) -> Mapping[str, Any] | None:
    """The configured pruning; None where there is none."""
    chosen = (config.cells[0].config or {}).get("pruning")
    if not isinstance(chosen, Mapping) or chosen.get("kind", chosen.get("name")) in (None, "none"):
        return None
    return chosen
