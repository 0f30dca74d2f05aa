"""Known seconds in, known timings and rates out."""

from __future__ import annotations

import time

import pytest

from scalewise.doctor.compute import HostStopwatch, gb_per_s, measure, repetitions, to_timing
from scalewise.records import Timing


def test_bandwidth_is_bytes_over_the_median() -> None:
    assert gb_per_s(2**30, Timing((999.0, 1000.0, 4000.0), 5)) == pytest.approx(1073.741824)


def test_spread_is_the_range_over_the_median() -> None:
    assert Timing((90.0, 100.0, 130.0), 1).spread_percent == pytest.approx(40)


def test_no_repetition_is_no_timing() -> None:
    with pytest.raises(ValueError, match="allowed: one or more, each above 0"):
        Timing((), 1)


@pytest.mark.parametrize(
    ("once_s", "budget_s", "expected"),
    [
        (1e-6, 0.7, (7, 1000)),  # quick: the most iterations there are
        (1e-3, 0.705, (7, 100)),
        (0.1, 0.75, (7, 1)),
        (0.2, 1.0, (5, 1)),
        (9.0, 1.0, (3, 1)),  # slow: never fewer than three
    ],
)
def test_repetitions_fit_the_budget(
    once_s: float, budget_s: float, expected: tuple[int, int]
) -> None:
    assert repetitions(once_s, budget_s) == expected


def test_the_time_of_one_operation_is_that_of_the_batch_divided() -> None:
    timing = measure(HostStopwatch(), lambda: time.sleep(0.002), 0.1)
    assert len(timing.samples_us) == 7
    assert 2000 <= min(timing.samples_us) < 4000
    assert to_timing([1e-3, 2e-3], 4).samples_us == pytest.approx((1000, 2000))
