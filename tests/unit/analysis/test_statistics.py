"""Against scipy where scipy has it, by seeded simulation where it does not."""

import math

import numpy as np
import pytest
from scipy import stats

from scalewise.analysis import statistics, verdict
from scalewise.analysis.statistics import bonferroni, estimate_ratio

RUNS_A = [101.2, 99.8, 103.4, 98.7, 100.9]
RUNS_B = [92.1, 95.4, 90.8, 93.9]


def test_t_interval_is_scipys() -> None:
    estimate = statistics.estimate_mean(RUNS_A)
    expected = stats.ttest_1samp(RUNS_A, 0).confidence_interval(0.95)
    assert (estimate.interval.low, estimate.interval.high) == pytest.approx(expected)
    assert estimate.n == 5


def test_a_positive_quantity_is_estimated_on_logarithms() -> None:
    estimate = statistics.estimate_positive(RUNS_A)
    expected = stats.ttest_1samp(np.log(RUNS_A), 0).confidence_interval(0.95)
    bounds = (math.log(estimate.interval.low), math.log(estimate.interval.high))
    assert bounds == pytest.approx(expected)
    assert estimate.value == pytest.approx(stats.gmean(RUNS_A))
    assert estimate.sd == pytest.approx(np.std(RUNS_A, ddof=1))
    ratio = statistics.estimate_ratio(RUNS_A, RUNS_B)
    assert ratio.value == pytest.approx(estimate.value / statistics.estimate_positive(RUNS_B).value)


def test_two_wild_runs_have_a_wide_interval_above_zero() -> None:
    low_by_t = statistics.estimate_mean([2.0, 9.0]).interval
    assert low_by_t.low < 0  # what a time cannot be
    interval = statistics.estimate_positive([2.0, 9.0]).interval
    assert 0 < interval.low < 0.01
    assert interval.high > 1000
    assert statistics.estimate_positive([5.0]).interval is None
    with pytest.raises(ValueError, match="positive"):
        statistics.estimate_positive([1.0, 0.0])


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
    assert ratio.p_value == pytest.approx(expected.pvalue)
    assert ratio.value == pytest.approx(stats.gmean(RUNS_A) / stats.gmean(RUNS_B))


def test_ratio_of_identical_runs_is_certain_but_never_invented() -> None:
    ratio = statistics.estimate_ratio([2.0, 2.0], [1.0, 1.0])
    assert ratio.interval == statistics.Interval(2.0, 2.0)
    assert ratio.p_value == 0.0
    assert statistics.estimate_ratio([2.0, 2.0], [2.0, 2.0]).p_value == 1.0


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


def test_runs_without_a_common_round_are_two_samples() -> None:
    apart = estimate_ratio(dict(enumerate(RUNS_A)), dict(enumerate(RUNS_B, start=10)))
    assert apart == estimate_ratio(RUNS_A, RUNS_B)
    assert not apart.paired
    assert not estimate_ratio(dict(enumerate(RUNS_A)), RUNS_B).paired


def test_what_a_round_shares_leaves_its_ratio() -> None:
    """A host that is busy in one round slows both halves of it."""
    busy = [1.0, 0.6, 0.9, 0.8]
    above = {i: 2.0 * share * noise for i, (share, noise) in enumerate(zip(busy, RUNS_B))}  # noqa: B905
    below = dict(enumerate(busy))
    within, apart = estimate_ratio(above, below), estimate_ratio([*above.values()], busy)
    assert within.interval.high / within.interval.low < 1.1
    assert apart.interval.high / apart.interval.low > 1.9
    assert within.value == pytest.approx(apart.value)


def test_several_intervals_share_one_error() -> None:
    assert bonferroni(1) == pytest.approx(0.95)
    assert bonferroni(5) == pytest.approx(0.99)
    assert bonferroni(0) == pytest.approx(0.95), "nothing to compare with"


def test_outliers_are_flagged_from_ten_runs_up_only() -> None:
    runs = [10.0, 10.1, 9.9, 10.05, 9.95, 10.02, 9.98, 10.1, 9.9]
    assert verdict.outliers([*runs[:-1], 30.0]) is None
    assert verdict.outliers([*runs, 30.0]) == (9,)
    assert verdict.outliers([*runs, 10.0]) == ()


def test_modified_z_score_worked_by_hand() -> None:
    # median 3, MAD 1.
    assert verdict.modified_z_scores([1.0, 2.0, 3.0, 4.0, 8.0]) == pytest.approx(
        [-2 * 0.6745, -0.6745, 0.0, 0.6745, 5 * 0.6745]
    )
    assert verdict.outliers([5.0] * 11 + [9.0]) == (11,), "more than half are equal"
    assert verdict.outliers([5.0] * 12) == ()


def test_noisy_runs_carry_a_warning_and_steady_ones_do_not() -> None:
    assert "vary by" in (
        verdict.stability_warning(statistics.estimate_mean([100.0, 130.0, 80.0])) or ""
    )
    assert verdict.stability_warning(statistics.estimate_mean([100.0, 100.5, 99.8])) is None


@pytest.mark.parametrize("bad", [[], [1.0, float("nan")], [float("inf")]])
def test_runs_must_be_finite_numbers(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="finite numbers"):
        statistics.estimate_mean(bad)


def test_a_ratio_needs_positive_values() -> None:
    with pytest.raises(ValueError, match="positive"):
        statistics.estimate_ratio([1.0, 2.0], [0.0, 1.0])
