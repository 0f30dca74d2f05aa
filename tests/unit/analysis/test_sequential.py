"""The stopping rule: what it answers, and by a small seeded simulation, how often it is wrong."""

import importlib.util
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from scalewise.analysis.statistics import estimate_ratio
from scalewise.analysis.verdict import (
    CAP,
    Look,
    estimate_at,
    judge_at,
    nominal_level,
    schedule,
    stop_or_go_on,
)


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "sequential_stopping.py"
    spec = importlib.util.spec_from_file_location("sequential_stopping", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def runs(mean: float, cv: float, n: int, seed: int) -> list[float]:
    rng = np.random.default_rng(seed)
    return [float(v) for v in mean * np.exp(rng.normal(0, cv, n))]


def decide(single: Sequence[float], multi: Sequence[float], devices: int) -> Look:
    """What a sweep does with these global samples/s, as a report judges them."""
    speedup = estimate_at(multi, single)
    return stop_or_go_on(judge_at(speedup, devices), speedup.interval, min(len(single), len(multi)))


@pytest.mark.parametrize(
    ("means", "cv", "n", "because"),
    [
        ((100, 185), 0.01, 3, "verdict"),
        ((100, 110), 0.4, CAP, "cap"),
        ((100, 110), 0.002, 8, "precision"),
    ],
)
def test_it_ends_by_what_is_reached_first(
    means: tuple[float, float], cv: float, n: int, because: str
) -> None:
    single, multi = runs(means[0], cv, n, 1), runs(means[1], cv, n, 4 if cv < 0.01 else 2)
    found = decide(single, multi, devices=2)
    assert found.because == because


def test_uneven_sides_count_as_the_shorter() -> None:
    found = decide([100.0, 101.0], runs(190, 0.01, 5, 2), devices=2)
    assert found == Look(None, 3, found.reason)


@pytest.mark.parametrize("n", [1, 2, 4, 6, 13])
def test_between_looks_the_data_are_not_judged(n: int) -> None:
    """Runs since the last look would make an end of it, had they been looked at."""
    seen = max((look for look in schedule() if look < n), default=0)
    noise = [1.5 if i % 2 else 0.6 for i in range(seen)]
    single = [100.0 * factor for factor in noise] + [100.0] * (n - seen)
    multi = [190.0 * factor for factor in noise[::-1]] + [190.0] * (n - seen)
    found = decide(single, multi, devices=2)
    assert found.wanted == next(look for look in schedule() if look > n)
    assert estimate_at(multi, single).n == (seen or n, seen or n)


def test_a_look_pays_for_the_looks_before_it() -> None:
    a, b = runs(150, 0.1, 5, 1), runs(100, 0.1, 5, 2)
    corrected, plain = estimate_at(a, b).interval, estimate_ratio(a, b).interval
    assert corrected is not None
    assert plain is not None
    assert corrected.low < plain.low
    assert corrected.high > plain.high


def test_levels_grow_with_the_runs_and_never_reach_the_whole_error() -> None:
    levels = [nominal_level(look) for look in schedule()]
    assert levels == sorted(levels)
    assert levels[-1] == pytest.approx(0.035)


def test_the_cap_is_the_last_look() -> None:
    assert schedule(10) == (3, 5, 8, 10)
    assert schedule(3) == (3,)
    with pytest.raises(ValueError, match="3 or more"):
        schedule(2)


def test_the_simulated_rule_is_the_shipped_one(benchmark: ModuleType) -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        single, multi = rng.normal(0, 0.1, 5), rng.normal(0.15, 0.1, 5)
        low, high = benchmark.intervals(single[None], multi[None], nominal_level(5))
        shipped = estimate_at(np.exp(multi).tolist(), np.exp(single).tolist()).interval
        assert shipped is not None
        assert (math.exp(low[0]), math.exp(high[0])) == pytest.approx((shipped.low, shipped.high))


@pytest.mark.parametrize("kind", ["normal", "skewed", "outliers", "drift"])
@pytest.mark.parametrize("cv", [0.02, 0.2])
def test_goals_hold_on_a_small_simulation(benchmark: ModuleType, kind: str, cv: float) -> None:
    wide, hard, same = benchmark.stratum(kind, cv, comparisons=600, seed=1)
    # Limits are the goals, widened by two standard errors of 600 comparisons.
    assert wide.same_as_fixed >= 0.98 - 0.012
    assert wide.runs_share <= 0.40  # the goal of 25 % is a mean over all CVs
    assert hard.coverage >= 0.94 - 0.02
    assert hard.wrong <= 0.025 + 0.013
    assert same.different <= 0.05 + 0.018
