"""How figures of several ranks become one."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scalewise.records import RankSummary, SweepFolder, last_metrics, mean_over_ranks

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "analysis"))

from fakes.recorded import DDP, write_sweep


def test_values_that_agree_stay_what_they_are() -> None:
    agreed = 0.1 + 0.2
    assert mean_over_ranks([agreed] * 3, [1.0, 1.0, 7.0]) == agreed
    assert mean_over_ranks([agreed] * 3, None) == agreed


def test_the_mean_is_weighted_and_not_finite_if_any_is() -> None:
    assert mean_over_ranks([1.0, 4.0], [2.0, 1.0]) == 2.0
    assert mean_over_ranks([1.0, None], [2.0, 1.0]) is None
    for nothing in (None, [0.0, 0.0]):
        with pytest.raises(ValueError, match="values that differ"):
            mean_over_ranks([1.0, 2.0], nothing)


@pytest.fixture
def ranks(tmp_path: Path) -> tuple[RankSummary, ...]:
    ((_, folder),) = SweepFolder(write_sweep(tmp_path, [DDP])).cells()
    return folder.load_result().ranks


def told(rank: RankSummary, fed: int, **metrics: float) -> RankSummary:
    return replace(rank, samples_fed=fed, metrics=metrics)


def test_last_metrics_are_those_of_all_ranks(ranks: tuple[RankSummary, ...]) -> None:
    first, second = ranks
    found = last_metrics(
        [
            told(first, 300, train_loss=2.0, val_loss=2.0, only_here=5.0),
            told(second, 100, train_loss=1.0, val_loss=1.0),
        ]
    )
    assert found == {"train_loss": 1.75, "val_loss": 1.5, "only_here": 5.0}
    uncounted = [told(first, 0, train_loss=2.0), told(second, 0, train_loss=1.0)]
    assert last_metrics(uncounted) == {"train_loss": 1.5}
