"""How near a strategy comes to independent replicas, which never wait for each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scalewise.analysis.identity import differences
from scalewise.analysis.runs import Configuration
from scalewise.analysis.statistics import RatioEstimate, estimate_ratio


@dataclass(frozen=True)
class UnderCeiling:
    """A configuration beside the ceiling of its devices."""

    ceiling: Configuration
    share: RatioEstimate
    """Its samples/s over those of the ceiling."""


def is_ceiling(config: Configuration) -> bool:
    """Whether its ranks trained models of their own: a bound, and no way to train one model."""
    results = [run.cell.result for run in config.runs]
    return any(result is not None and result.models > 1 for result in results)


def under_ceiling(config: Configuration, configs: Sequence[Configuration]) -> UnderCeiling | None:
    """``config`` beside the independent replicas that differ from it in the strategy alone."""
    if is_ceiling(config) or (config.devices or 1) < 2 or config.invalid:
        return None
    own = config.values("samples_per_s")
    for other in configs:
        if not is_ceiling(other) or other.invalid:
            continue
        if differences(config.identity, other.identity, "strategy"):
            continue
        most = other.values("samples_per_s")
        if own and most:
            return UnderCeiling(other, estimate_ratio(own, most))
    return None
