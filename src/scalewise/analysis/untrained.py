"""Runs with steps that trained nothing: a step without a gradient is a fast one."""

from __future__ import annotations

from scalewise.analysis.runs import Configuration
from scalewise.records import RankSummary


def untrained_steps(config: Configuration) -> str | None:
    """``12 of 12 steps trained nothing`` and why, of the worst rank; None where all trained."""
    ranks = [r for run in config.runs if run.cell.result for r in run.cell.result.ranks]
    worst = max(ranks, key=_share, default=None)
    if worst is None or not worst.steps_without_loss:
        return None
    return (
        f"{worst.steps_without_loss:,} of {_steps(worst):,} steps trained nothing "
        "(training_step returned no loss in them): their time is not that of training"
    )


def _share(rank: RankSummary) -> float:
    return (rank.steps_without_loss or 0) / max(1, _steps(rank))


def _steps(rank: RankSummary) -> int:
    """Of this try: those of an earlier one have no record of their losses."""
    return rank.steps_completed - (rank.resumed_at_step or 0)
