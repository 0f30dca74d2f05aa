"""Against scipy where scipy has it, by seeded simulation where it does not."""

import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from scalewise.analysis import (
    Estimate,
    RatioEstimate,
    as_plain,
    estimate,
    estimate_positive,
    factor,
    number,
    ratio,
    statistics,
    verdict,
)
from scalewise.analysis.figures import bounds_nothing, confidence, interval_words, no_bound
from scalewise.analysis.statistics import (
    Interval,
    bonferroni,
    estimate_mean,
    estimate_not_negative,
    estimate_ratio,
)
from scalewise.analysis.verdict import judge

TABLES = tomllib.loads(Path(__file__).with_name("tables.toml").read_text())
RUNS_A = [101.2, 99.8, 103.4, 98.7, 100.9]
RUNS_B = [92.1, 95.4, 90.8, 93.9]


def test_a_positive_quantity_is_estimated_on_logarithms() -> None:
    estimate = statistics.estimate_positive(RUNS_A)
    bounds = (math.log(estimate.interval.low), math.log(estimate.interval.high))
    assert bounds == pytest.approx(stats.ttest_1samp(np.log(RUNS_A), 0).confidence_interval(0.95))
    assert estimate.value == pytest.approx(stats.gmean(RUNS_A))
    assert estimate.sd == pytest.approx(np.std(RUNS_A, ddof=1))


def test_one_run_has_no_interval_and_one_of_nothing_no_logarithm() -> None:
    assert statistics.estimate_positive([5.0]).interval is None
    with pytest.raises(ValueError, match="positive"):
        statistics.estimate_positive([1.0, 0.0])
    with pytest.raises(ValueError, match="positive"):
        statistics.estimate_ratio([1.0, 2.0], [0.0, 1.0])


def test_an_interval_of_a_share_ends_at_zero() -> None:
    cut, whole = statistics.estimate_not_negative([0.0, 0.4]), statistics.estimate_mean([0.0, 0.4])
    assert (cut.interval, whole.interval) != (None, None)
    assert cut.interval == statistics.Interval(0.0, whole.interval.high if whole.interval else 0.0)
    assert cut.value == whole.value


def test_no_cv_of_positive_runs_is_more_than_is_possible() -> None:
    """``sqrt(n)``: one run that took all, beside others of nothing."""
    wild = statistics.estimate_positive([1.0, 1.0, 1e4])
    assert wild.cv == pytest.approx(math.sqrt(3), rel=1e-3)
    assert wild.scaled(1e-3).cv == pytest.approx(wild.cv)
    runs = np.asarray(RUNS_A)
    assert statistics.estimate_positive(RUNS_A).cv == pytest.approx(runs.std(ddof=1) / runs.mean())
    assert statistics.estimate_positive(RUNS_A).cv == statistics.estimate_mean(RUNS_A).cv


def test_ratio_interval_is_welch_on_logs() -> None:
    ratio = statistics.estimate_ratio(RUNS_A, RUNS_B)
    expected = stats.ttest_ind(np.log(RUNS_A), np.log(RUNS_B), equal_var=False)
    bounds = np.exp(expected.confidence_interval(0.95))
    assert (ratio.interval.low, ratio.interval.high) == pytest.approx(tuple(bounds))
    assert (ratio.p_value, ratio.df) == pytest.approx((expected.pvalue, expected.df))
    assert ratio.value == pytest.approx(stats.gmean(RUNS_A) / stats.gmean(RUNS_B))


def test_ratio_of_identical_runs_is_certain_but_never_invented() -> None:
    sure = estimate_ratio([2.0] * 5, [1.0] * 5)
    assert sure == RatioEstimate(2.0, (5, 5), Interval(2.0, 2.0), 0.0, False, 0.0, 8.0)
    assert estimate_ratio([2.0, 2.0], [2.0, 2.0]).p_value == 1.0
    for above, error, df in (([1.0] * 3, 0.5, 1), ([1.0, math.e], math.sqrt(0.5), 2)):
        found = estimate_ratio(above, [1.0, math.e])
        assert (found.log_error, found.df) == pytest.approx((error, df))


def test_rounds_that_both_sides_have_are_paired() -> None:
    """Round 1 failed on one side and round 5 on the other: neither counts."""
    above = {0: 101.2, 2: 103.4, 3: 98.7, 4: 100.9, 5: 70.0}
    below = {0: 92.1, 1: 150.0, 2: 95.4, 3: 90.8, 4: 93.9}
    ratio = estimate_ratio(above, below)
    pairs = [math.log(above[i] / below[i]) for i in (0, 2, 3, 4)]
    expected = stats.ttest_1samp(pairs, 0)
    ends = tuple(np.exp(expected.confidence_interval(0.95)))
    assert (ratio.interval.low, ratio.interval.high) == pytest.approx(ends)
    assert ratio.p_value == pytest.approx(expected.pvalue)
    assert (ratio.value, ratio.n) == (pytest.approx(stats.gmean(np.exp(pairs))), (4, 4))
    assert (ratio.paired, ratio.df) == (True, 3)
    for apart in (RUNS_B, dict(enumerate(RUNS_B, start=10))):
        assert estimate_ratio(above, apart) == estimate_ratio([*above.values()], RUNS_B)


def test_several_intervals_share_one_error() -> None:
    assert [bonferroni(rivals) for rivals in (0, 1, 5)] == pytest.approx([0.95, 0.95, 0.99])


TEN = [10.0, 10.1, 9.9, 10.05, 9.95, 10.02, 9.98, 10.1, 9.9, 30.0]


@pytest.mark.parametrize(
    ("runs", "flagged"),
    [(TEN, (9,)), ([*TEN[:-1], 10.0], ()), (TEN[1:], None),
     ([5.0] * 11 + [9.0], (11,)), ([5.0] * 12, ())],  # more than half are equal
)  # fmt: skip
def test_outliers_need_ten_runs(runs: list[float], flagged: tuple[int, ...] | None) -> None:
    assert verdict.outliers(runs) == flagged
    # median 3, MAD 1.
    assert verdict.modified_z_scores([1.0, 2.0, 3.0, 4.0, 8.0]) == pytest.approx(
        [-2 * 0.6745, -0.6745, 0.0, 0.6745, 5 * 0.6745]
    )


def test_noisy_runs_carry_a_warning_and_steady_ones_do_not() -> None:
    assert "vary by" in (
        verdict.stability_warning(statistics.estimate_mean([100.0, 130.0, 80.0])) or ""
    )
    assert verdict.stability_warning(statistics.estimate_mean([100.0, 100.5, 99.8])) is None


@pytest.mark.parametrize("bad", [[], [1.0, float("nan")], [float("inf")]])
def test_runs_must_be_finite_numbers(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="finite numbers"):
        statistics.estimate_mean(bad)


# How figures and their doubt are written: read at a glance, and never more than is known.
@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (number, None, "-"), (number, 0.0, "0"), (number, 9.9999, "10.0"),
        (number, 0.01234, "0.0123"), (number, 12345.6, "12,346"),
        (number, 9_876_543.0, "9,876,543"), (number, 12_345_678.0, "1.23e+07"),
        (number, 1e-9, "1.00e-09"),
        # A ratio is never written as 0.00.
        (factor, 1.654, "1.65"), (factor, 0.104, "0.10"), (factor, 0.0312, "0.031"),
        (factor, 4e-7, "4e-07"), (factor, 23456.0, "23,456"), (factor, 1000.0, "1,000"),
        (estimate, None, "-"), (estimate, Estimate(106.62, 1, None, None), "107"),
    ],
)  # fmt: skip
def test_numbers_keep_three_digits(write: Callable[[Any], str], value: Any, text: str) -> None:
    assert write(value) == text


@pytest.mark.parametrize(("value", "below", "above", "text"), TABLES["doubts"])
def test_figure_and_doubt_end_alike(value: float, below: float, above: float, text: str) -> None:
    assert estimate(Estimate(value, 3, 1.0, Interval(value - below, value + above))) == text


@pytest.mark.parametrize(("runs", "which"), [([1.27, 1.27], "both"), ([0.1 + 0.2] * 5, "all 5")])
def test_runs_that_are_equal_are_not_said_to_be_certain(runs: list[float], which: str) -> None:
    for found in (estimate_positive(runs), estimate_mean(runs)):
        assert estimate(found) == f"{number(runs[0])} (equal in {which} runs)"
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
    assert ratio(RatioEstimate(0.4, (3, 3), Interval(0.0191, 17.6), 0.4)) == "0.40 (0.019-17.60)"
    told = judge(RatioEstimate(0.05, (3, 3), Interval(0.004, 0.62), 0.01, paired=True), 2)
    assert (told.verdict, told.short) == ("does not pay", "slower than one device")
    assert "(95 % interval 0.004-0.62, 3 pairs), efficiency 0.025" in told.reason
    unsure = (judge(RatioEstimate(1.1, (3, 3), Interval(low, 1.4), 0.1), 2) for low in (0.999, 1.0))
    assert ["at least 1.00 times" in one.reason for one in unsure] == [False, True]


def test_an_interval_that_bounds_nothing_is_null_with_its_reason() -> None:
    plain = as_plain(RatioEstimate(0.4, (2, 3), Interval(1e-9, 1e9), 0.4))
    assert (plain["value"], plain["interval"]) == (0.4, None)
    assert plain["interval_missing"] == no_bound(2, 3)
    bound = as_plain(RatioEstimate(0.4, (2, 2), Interval(0.3, 0.5), 0.4))
    assert "interval_missing" not in bound
    assert bound["interval"]["low"] == 0.3
    assert as_plain(None) is None
    assert [bounds_nothing(Interval(1.0, end)) for end in (1000.0, 1000.5)] == [False, True]


@pytest.mark.parametrize(
    ("level", "words"), [(0.95, "95 %"), (1 - 0.05 / 3, "98.3 %"), (1 - 0.05 / 1000, "99.995 %")]
)
def test_a_corrected_level_is_never_rounded_to_certainty(level: float, words: str) -> None:
    assert confidence(Interval(0.9, 1.1, level)) == words
