"""How figures of several ranks become one."""

from __future__ import annotations

import pytest

from fakes.recorded import rank_summary
from scalewise.records import DeviceInfo, RankSummary, last_metrics, mean_over_ranks


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


def told(fed: int, **metrics: float) -> RankSummary:
    return rank_summary(0, DeviceInfo("cpu", "a CPU"), 1, fed, metrics=metrics, metric_rows=1)


def test_last_metrics_are_those_of_all_ranks() -> None:
    found = last_metrics(
        [
            told(300, train_loss=2.0, val_loss=2.0, only_here=5.0),
            told(100, train_loss=1.0, val_loss=1.0),
        ]
    )
    assert found == {"train_loss": 1.75, "val_loss": 1.5, "only_here": 5.0}
    uncounted = [told(0, train_loss=2.0), told(0, train_loss=1.0)]
    assert last_metrics(uncounted) == {"train_loss": 1.5}
