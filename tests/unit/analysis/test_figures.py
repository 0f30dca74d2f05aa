"""How figures and their doubt are written: read at a glance, and never more than is known."""

import pytest

from scalewise.analysis import (
    Estimate,
    RatioEstimate,
    as_plain,
    estimate,
    estimate_positive,
    factor,
    number,
    ratio,
)
from scalewise.analysis.figures import confidence, interval_words, no_bound, value_in_columns
from scalewise.analysis.statistics import (
    Interval,
    estimate_mean,
    estimate_not_negative,
    estimate_ratio,
)
from scalewise.analysis.verdict import judge


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (9.9999, "10.0"),
        (0.01234, "0.0123"),
        (12345.6, "12,346"),
        (9_876_543.0, "9,876,543"),
        (12_345_678.0, "1.23e+07"),
        (1e-9, "1.00e-09"),
    ],
)
def test_numbers_keep_three_digits(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.654, "1.65"), (0.104, "0.10"), (0.0312, "0.031"), (4e-7, "4e-07"), (23456.0, "23,456")],
)
def test_a_ratio_is_never_written_as_0_00(value: float, text: str) -> None:
    assert factor(value) == text


def test_an_estimate_shows_its_doubt_to_two_digits() -> None:
    assert estimate(Estimate(106.62, 5, 1.5, Interval(104.73, 108.51))) == "106.6 (104.7-108.5)"
    assert estimate(Estimate(106.62, 1, None, None)) == "107"
    assert estimate(None) == "-"
    assert estimate(Estimate(4.24, 2, 4.9, Interval(0.3, 59.8))) == "4.24 (0.300-59.8)"
    assert estimate(Estimate(55_464.0, 3, 4e3, Interval(40_495.0, 75_965.0))) == (
        "55,500 (40,500-76,000)"
    )
    assert estimate(Estimate(100.0, 5, 4.0, Interval(95.2, 105.2))) == "100.0 (95.2-105.2)"


@pytest.mark.parametrize(
    ("value", "half", "text"),
    [
        (75_794.0, 6_288.0, "75,800 (69,500-82,100)"),  # nobody knows the 94 of it
        (99.96, 0.0998, "99.96 (99.86-100.06)"),
        (1.244171, 0.000023, "1.2442 (1.2441-1.2442)"),
        (1.244171, 0.00023, "1.2442 (1.2439-1.2444)"),
        (12_345.6, 0.03, "12,346 (12,346-12,346)"),
        (3.0, 500.0, "3 (-497 to 503)"),
        (0.0, 5.0, "0.0 (-5.0 to 5.0)"),
        (1e-8, 1e-9, "1.00e-08 (9.00e-09 to 1.10e-08)"),
    ],
)
def test_a_figure_and_its_doubt_end_at_one_place(value: float, half: float, text: str) -> None:
    assert estimate(Estimate(value, 3, 1.0, Interval(value - half, value + half))) == text


@pytest.mark.parametrize(("runs", "which"), [([1.27, 1.27], "both"), ([0.1 + 0.2] * 5, "all 5")])
def test_runs_that_are_equal_are_not_said_to_be_certain(runs: list[float], which: str) -> None:
    said = f"(equal in {which} runs)"
    for found in (estimate_positive(runs), estimate_mean(runs)):
        assert estimate(found) == f"{number(runs[0])} {said}"
    assert estimate(estimate_not_negative([0.0, 0.0, 0.0])) == "0 (equal in all 3 runs)"


def test_two_runs_that_differ_bound_nothing_and_nothing_reads_0_00() -> None:
    """The intervals are of the product's own statistics, of runs that differ by half and more."""
    wild = estimate_ratio([100.0, 310.0], [90.0, 92.0])
    assert wild.interval.low < 0.005
    assert ratio(wild) == "1.93 (no useful bound from 2 runs)"
    assert interval_words(wild) == "no useful bound from 2 runs"
    three = judge(estimate_ratio([10.0, 310.0, 9000.0], [90.0, 92.0, 91.0]), 2)
    assert judge(wild, 2).verdict == three.verdict == "undecided"
    assert "(no useful bound from 3 runs, 3 and 3 runs)" in three.reason
    assert estimate(estimate_positive([40.0, 210.0])) == "91.7 (no useful bound from 2 runs)"
    uneven = RatioEstimate(1.93, (2, 3), wild.interval, 0.5)
    assert ratio(uneven) == "1.93 (no useful bound from 2 and 3 runs)"


def test_a_wide_interval_that_still_bounds_keeps_its_digits() -> None:
    wide = RatioEstimate(0.4, (3, 3), Interval(0.0191, 17.6), 0.4)
    assert ratio(wide) == "0.40 (0.019-17.60)"
    slow = RatioEstimate(0.05, (3, 3), Interval(0.004, 0.62), 0.01, paired=True)
    told = judge(slow, 2)
    assert (told.verdict, told.short) == ("does not pay", "slower than one device")
    assert "(95 % interval 0.004-0.62, 3 pairs), efficiency 0.025" in told.reason


def test_an_interval_that_bounds_nothing_is_null_with_its_reason() -> None:
    plain = as_plain(RatioEstimate(0.4, (2, 3), Interval(1e-9, 1e9), 0.4))
    assert (plain["value"], plain["interval"]) == (0.4, None)
    assert plain["interval_missing"] == no_bound(2, 3)
    bound = as_plain(RatioEstimate(0.4, (2, 2), Interval(0.3, 0.5), 0.4))
    assert "interval_missing" not in bound
    assert bound["interval"]["low"] == 0.3
    assert as_plain(None) is None


@pytest.mark.parametrize(
    ("level", "words"), [(0.95, "95 %"), (1 - 0.05 / 3, "98.3 %"), (1 - 0.05 / 1000, "99.995 %")]
)
def test_a_corrected_level_is_never_rounded_to_certainty(level: float, words: str) -> None:
    assert confidence(Interval(0.9, 1.1, level)) == words


def test_a_value_has_a_column_and_its_interval_two() -> None:
    assert value_in_columns("x", 3) == {"x": 3}
    ratio = RatioEstimate(1.5, (3, 3), Interval(1.2, 1.8), 0.01)
    assert value_in_columns("x", ratio) == {"x": 1.5, "x_low95": 1.2, "x_high95": 1.8}
