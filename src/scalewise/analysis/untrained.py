"""Runs with steps that trained nothing: a step without a gradient is a fast one."""

from __future__ import annotations

from collections.abc import Sequence

from scalewise.analysis.runs import Configuration
from scalewise.records import RankSummary

LEFT_OUT_UP_TO = 0.05
"""Share of steps without a loss up to which times are doubted and still compared: a loop that
leaves out a bad batch now and then, and gains at most as much."""


def untrained_steps(config: Configuration) -> str | None:
    """``12 of 12 steps trained nothing`` and why, of the worst rank; None where all trained."""
    worst = _worst(_ranks(config))
    return _in_words(worst) if worst is not None and worst.steps_without_loss else None


def no_training(config: Configuration) -> str | None:
    """As :func:`untrained_steps`, where they are so many that its times are no training's.

    It is not compared with others then, and is not the fastest of any; None where it may be.
    """
    return no_training_of(_ranks(config))


def no_training_of(ranks: Sequence[RankSummary]) -> str | None:
    """As :func:`no_training`, of the ranks of one run or of several."""
    worst = _worst(ranks)
    return _in_words(worst) if worst is not None and _share(worst) > LEFT_OUT_UP_TO else None


def _ranks(config: Configuration) -> list[RankSummary]:
    return [r for run in config.runs if run.cell.result for r in run.cell.result.ranks]


def _worst(ranks: Sequence[RankSummary]) -> RankSummary | None:
    return max(ranks, key=_share, default=None)


def _in_words(rank: RankSummary) -> str:
    return (
        f"{rank.steps_without_loss:,} of {_steps(rank):,} steps trained nothing "
        "(training_step returned no loss in them): their time is not that of training"
    )


def _share(rank: RankSummary) -> float:
    return (rank.steps_without_loss or 0) / max(1, _steps(rank))


def _steps(rank: RankSummary) -> int:
    """Of this try: those of an earlier one have no record of their losses."""
    return rank.steps_completed - (rank.resumed_at_step or 0)
