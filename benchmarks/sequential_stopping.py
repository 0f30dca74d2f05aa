"""How `repeats=auto` behaves: error, coverage and cost of the stopping rule, by simulation.

    python benchmarks/sequential_stopping.py [--comparisons 2000] [--seed 1]

Synthetic runs with known truth: four kinds of noise times six run-to-run CVs, 2,000 comparisons
each. (a) true ratio log-uniform from 0.5 to 4: cost against a fixed protocol of 50 runs a side,
and agreement with it wherever it decides. (b) true ratio uniform from 0.9 to 1.2, across the
edges of the bands: coverage of the interval at the stop, and wrong verdicts. (c) ratio 1: how
often an A/A comparison is called different.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from scalewise.analysis import MIN_EFFICIENCY
from scalewise.analysis.verdict import (
    BENEFICIAL_FROM,
    CAP,
    MARGINAL_FROM,
    PRECISION,
    nominal_level,
    schedule,
)

Array = npt.NDArray[np.float64]
NOISES = ("normal", "skewed", "outliers", "drift")
CVS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
DEVICES = 2
UNDECIDED = -1


@dataclass(frozen=True)
class Outcome:
    """Shares over the comparisons of one stratum."""

    runs_share: float
    """Of the runs of the fixed protocol."""
    same_as_fixed: float
    """Of the comparisons that the fixed protocol decides."""
    coverage: float
    wrong: float
    different: float
    """The interval at the stop excludes 1."""


def log_noise(rng: np.random.Generator, kind: str, cv: float, shape: tuple[int, int]) -> Array:
    """Log throughput of runs around 0, shape ``[comparisons, runs]``."""
    sigma = math.sqrt(math.log1p(cv**2))
    if kind == "skewed":  # most runs near the best, a tail of slow ones
        return -sigma * (rng.exponential(1, shape) - 1)
    noise = rng.normal(0, sigma, shape)
    if kind == "outliers":  # one run in twenty is slowed down much
        noise -= (rng.random(shape) < 0.05) * rng.exponential(3 * sigma, shape)
    return noise


def simulate(
    rng: np.random.Generator, kind: str, cv: float, log_ratio: Array, cap: int = CAP
) -> Outcome:
    """Run the rule on ``len(log_ratio)`` comparisons with these true ratios."""
    shape = (len(log_ratio), cap)
    single = log_noise(rng, kind, cv, shape)
    multi = log_noise(rng, kind, cv, shape) + log_ratio[:, None]
    if kind == "drift":  # both sides ride on one slope, in the randomised interleaved order
        slope = rng.normal(0, 2 * cv, (shape[0], 1))
        times = np.arange(2 * cap) / (2 * cap)
        first = rng.random(shape) < 0.5
        single = single + slope * np.where(first, times[0::2], times[1::2])
        multi = multi + slope * np.where(first, times[1::2], times[0::2])
    stop = np.zeros(shape[0], dtype=int)
    verdict = np.full(shape[0], UNDECIDED)
    low, high = np.zeros(shape[0]), np.zeros(shape[0])
    for runs in schedule(cap):
        lows, highs = intervals(single[:, :runs], multi[:, :runs], nominal_level(runs, cap=cap))
        found = verdicts(lows, highs)
        ends = (found != UNDECIDED) | (highs - lows <= math.log1p(PRECISION)) | (runs == cap)
        now = (stop == 0) & ends
        stop[now], verdict[now], low[now], high[now] = runs, found[now], lows[now], highs[now]
    fixed = verdicts(*intervals(single, multi, 0.05))
    truth = verdicts(log_ratio, log_ratio)
    decided = fixed != UNDECIDED
    return Outcome(
        float(stop.mean()) / cap,
        float((verdict[decided] == fixed[decided]).mean()) if decided.any() else math.nan,
        float(((low <= log_ratio) & (log_ratio <= high)).mean()),
        float(((verdict != UNDECIDED) & (verdict != truth)).mean()),
        float(((low > 0) | (high < 0)).mean()),
    )


def intervals(single: Array, multi: Array, level: float) -> tuple[Array, Array]:
    """Welch intervals of log ratios, row by row."""
    n = single.shape[1]
    a, b = single.var(axis=1, ddof=1) / n, multi.var(axis=1, ddof=1) / n
    df = (a + b) ** 2 / (a**2 + b**2) * (n - 1)
    half = stats.t.ppf(1 - level / 2, df) * np.sqrt(a + b)
    middle = multi.mean(axis=1) - single.mean(axis=1)
    return middle - half, middle + half


def verdicts(low: Array, high: Array) -> npt.NDArray[np.int64]:
    """0 prefer single, 1 marginal, 2 beneficial, -1 inconclusive."""
    wanted = math.log(max(BENEFICIAL_FROM, MIN_EFFICIENCY * DEVICES))
    least = math.log(MARGINAL_FROM)
    inside = (low >= least) & (high <= wanted)
    return np.select([low > wanted, high < least, inside], [2, 0, 1], UNDECIDED)


def stratum(kind: str, cv: float, comparisons: int, seed: int) -> tuple[Outcome, Outcome, Outcome]:
    """Outcomes (a), (b) and (c) for one kind of noise and one CV."""
    rng = np.random.default_rng([seed, NOISES.index(kind), round(cv * 1000)])
    wide = rng.uniform(math.log(0.5), math.log(4), comparisons)
    hard = np.log(rng.uniform(0.9, 1.2, comparisons))
    same = np.zeros(comparisons)
    wide_outcome = simulate(rng, kind, cv, wide)
    return wide_outcome, simulate(rng, kind, cv, hard), simulate(rng, kind, cv, same)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print("noise      CV  | (a) runs  same  | (b) coverage  wrong  runs | (c) A/A different")
    every: list[tuple[Outcome, Outcome, Outcome]] = []
    for kind in NOISES:
        for cv in CVS:
            a, b, c = stratum(kind, cv, options.comparisons, options.seed)
            every.append((a, b, c))
            print(
                f"{kind:8} {cv:4.0%}  |  {a.runs_share:6.1%} {a.same_as_fixed:6.1%} |     "
                f"{b.coverage:7.1%} {b.wrong:7.2%} {b.runs_share:5.0%} | {c.different:7.2%}"
            )
    print(
        f"all: (a) runs {np.mean([a.runs_share for a, _, _ in every]):.1%} of the fixed protocol "
        f"(goal: at most 25 %), same verdict at least "
        f"{min(a.same_as_fixed for a, _, _ in every):.1%} (98 %)\n"
        f"     (b) coverage at least {min(b.coverage for _, b, _ in every):.1%} (94 %), wrong at "
        f"most {max(b.wrong for _, b, _ in every):.2%} (2.5 %)\n"
        f"     (c) different at most {max(c.different for _, _, c in every):.2%} (5 %)"
    )


if __name__ == "__main__":
    main()
