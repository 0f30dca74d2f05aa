"""How often what a report prints of few runs is wrong: coverage, verdicts, abstentions.

    python benchmarks/interval_coverage.py [--comparisons 10000] [--seed 1]

Synthetic runs with known truth: seven kinds of noise, run-to-run CVs of 0.5 to 20 %, 3 to 50 rounds
of one run on one device and one on two. The truth is the ratio of geometric means. It is uniform
from 0.8 to 1.4, across the edge. Verdicts are counted where it lies more than 2 % past it, and once
more exactly there. The tables are those of docs/statistics.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from scalewise.analysis import MIN_EFFICIENCY
from scalewise.analysis.statistics import CAP, PRECISION, VERDICT_RUNS, look_confidence
from scalewise.analysis.verdict import BENEFICIAL_FROM

Array = npt.NDArray[np.float64]
Intervals = Callable[[Array, Array, float], tuple[Array, Array]]
NOISES = {
    "symmetric": "normal on logarithms",
    "skewed": "exponential tail of slow runs on both sides",
    "skewed on several": "the same on several devices alone, normal on one",
    "outliers": "one run in twenty of either side slower by three CVs and more",
    "drift": "both sides ride on one slope over the session, of two CVs",
    "session": "both halves of a round share noise of two CVs",
    "slow mode": "one run in ten on several devices has 3/4 of the rate",
}
CVS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
RUNS = (3, 5, 8, 12, 20, 36, 50)
FIXED = 50
DEVICES = 2
UNDECIDED = -1
PAST_EDGE = 0.02
WANTED = math.log(max(BENEFICIAL_FROM, MIN_EFFICIENCY * DEVICES))
"""Logarithm of the edge. All that N devices change is where it lies."""


def log_rates(
    rng: np.random.Generator, noise: str, cv: float, shape: tuple[int, int]
) -> tuple[Array, Array]:
    """Logarithms of samples/s on one and on two devices, of mean 0; shape ``[comparisons, runs]``.

    The mean over all runs there could be is the geometric mean that is estimated.
    """
    sigma = math.sqrt(math.log1p(cv**2))
    single, multi = rng.normal(0, sigma, shape), rng.normal(0, sigma, shape)
    if noise.startswith("skewed"):
        multi = -sigma * (rng.exponential(1, shape) - 1)
    if noise == "skewed":
        single = -sigma * (rng.exponential(1, shape) - 1)
    if noise == "outliers":
        for side in (single, multi):
            side -= (rng.random(shape) < 0.05) * rng.exponential(3 * sigma, shape) - 0.15 * sigma
    if noise == "drift":  # in the random order of each round
        slope = rng.normal(0, 2 * cv, (shape[0], 1))
        times = np.arange(2 * shape[1]) / (2 * shape[1])
        first = rng.random(shape) < 0.5
        single += slope * np.where(first, times[0::2], times[1::2])
        multi += slope * np.where(first, times[1::2], times[0::2])
    if noise == "session":
        shared = rng.normal(0, 2 * sigma, shape)
        single += shared
        multi += shared
    if noise == "slow mode":
        multi += math.log(0.75) * ((rng.random(shape) < 0.1) - 0.1)
    return single, multi


def paired(single: Array, multi: Array, level: float) -> tuple[Array, Array]:
    """Ends of the intervals of log ratios within rounds, row by row; as ``estimate_ratio``."""
    ratios, n = multi - single, single.shape[1]
    half = stats.t.ppf(1 - level / 2, n - 1) * ratios.std(axis=1, ddof=1) / math.sqrt(n)
    return ratios.mean(axis=1) - half, ratios.mean(axis=1) + half


def welch(single: Array, multi: Array, level: float) -> tuple[Array, Array]:
    """The same of two samples, as where runs share no round."""
    n = single.shape[1]
    a, b = single.var(axis=1, ddof=1) / n, multi.var(axis=1, ddof=1) / n
    df = (a + b) ** 2 / (a**2 + b**2) * (n - 1)
    half = stats.t.ppf(1 - level / 2, df) * np.sqrt(a + b)
    middle = multi.mean(axis=1) - single.mean(axis=1)
    return middle - half, middle + half


def verdicts(low: Array, high: Array) -> npt.NDArray[np.int64]:
    """0 does not pay, 1 pays, -1 undecided; as ``judge``."""
    return np.select([low >= WANTED, high < WANTED], [1, 0], UNDECIDED)


def past_edge(truth: Array) -> npt.NDArray[np.bool_]:
    """Whether a true log ratio lies more than 2 % past the edge."""
    return abs(np.expm1(truth - WANTED)) > PAST_EDGE


def wrong(found: npt.NDArray[np.int64], truth: Array) -> npt.NDArray[np.bool_]:
    return (found != UNDECIDED) & (found != verdicts(truth, truth))


@dataclass(frozen=True)
class Fixed:
    """Shares over comparisons of so many runs a side."""

    coverage: float
    wrong: float
    """Where the truth is more than 2 % past the edge."""
    wrong_at_2_percent: float
    """Where it is 2 % past it, on the worse side."""
    undecided: float
    """Where it is more than 2 % past the edge."""
    width: float
    """Median, as a difference of logarithms."""


def fixed_runs(
    noise: str,
    cv: float,
    runs: int,
    comparisons: int,
    seed: int,
    intervals: Intervals = paired,
) -> Fixed:
    """Comparisons of so many rounds, with truths from 0.8 to 1.4."""
    rng = np.random.default_rng([seed, list(NOISES).index(noise), round(cv * 1000), runs])
    truth = np.log(rng.uniform(0.8, 1.4, comparisons))
    single, multi = log_rates(rng, noise, cv, (comparisons, runs))
    low, high = intervals(single, multi + truth[:, None], 0.05)
    found, clear = verdicts(low, high), past_edge(truth)
    at = [WANTED + math.log1p(side) for side in (-PAST_EDGE, PAST_EDGE)]
    # The interval only moves with the truth.
    moved = [(verdicts(low - truth + t, high - truth + t), np.full(comparisons, t)) for t in at]
    return Fixed(
        float(((low <= truth) & (truth <= high)).mean()),
        float(wrong(found, truth)[clear].mean()),
        max(float(wrong(*one).mean()) for one in moved),
        float((found == UNDECIDED)[clear].mean()),
        float(np.median(high - low)),
    )


@dataclass(frozen=True)
class Stopped:
    """Shares over comparisons under ``repeats=auto``."""

    runs: float
    """Mean, of each side."""
    same_as_fixed: float
    """Of the comparisons that a fixed protocol of 50 runs decides."""
    coverage: float
    """Of the interval at the stop."""
    wrong: float
    """Wherever the truth lies."""
    wrong_past_2_percent: float
    """Where it is more than 2 % past the edge."""
    undecided: float
    different: float
    """Comparisons whose interval at the stop excludes 1."""


def adaptive_runs(
    rng: np.random.Generator,
    noise: str,
    cv: float,
    truth: Array,
    cap: int = CAP,
    confidence: float = look_confidence(),
) -> Stopped:
    """The stopping rule on ``len(truth)`` comparisons with these true log ratios."""
    single, multi = log_rates(rng, noise, cv, (len(truth), FIXED))
    multi = multi + truth[:, None]
    stop, verdict = np.zeros(len(truth), dtype=int), np.full(len(truth), UNDECIDED)
    low, high = np.zeros(len(truth)), np.zeros(len(truth))
    for runs in range(VERDICT_RUNS, cap + 1):
        lows, highs = paired(single[:, :runs], multi[:, :runs], 1 - confidence)
        found = verdicts(lows, highs)
        ends = (found != UNDECIDED) | (highs - lows <= math.log1p(PRECISION)) | (runs == cap)
        now = (stop == 0) & ends
        stop[now], verdict[now], low[now], high[now] = runs, found[now], lows[now], highs[now]
    fixed = verdicts(*paired(single, multi, 0.05))
    decided, clear = fixed != UNDECIDED, past_edge(truth)
    return Stopped(
        float(stop.mean()),
        float((verdict[decided] == fixed[decided]).mean()) if decided.any() else math.nan,
        float(((low <= truth) & (truth <= high)).mean()),
        float(wrong(verdict, truth).mean()),
        float(wrong(verdict, truth)[clear].mean()) if clear.any() else math.nan,
        float((verdict == UNDECIDED).mean()),
        float(((low > 0) | (high < 0)).mean()),
    )


def stratum(
    noise: str, cv: float, comparisons: int, seed: int, cap: int = CAP, **rule: float
) -> tuple[Stopped, Stopped, Stopped, Stopped]:
    """True ratios from 0.5 to 4, from 1 to 1.2 across the edge, of the edge itself, and of 1."""
    rng = np.random.default_rng([seed, list(NOISES).index(noise), round(cv * 1000)])
    wide = rng.uniform(math.log(0.5), math.log(4), comparisons)
    near = np.log(rng.uniform(1, 1.2, comparisons))
    truths = (wide, near, np.full(comparisons, WANTED), np.zeros(comparisons))
    found = [adaptive_runs(rng, noise, cv, truth, cap, **rule) for truth in truths]
    return found[0], found[1], found[2], found[3]


def head(*names: str) -> None:
    print(f"\n| {' | '.join(names)} |\n|---|{'---:|' * (len(names) - 1)}")


def print_fixed(comparisons: int, seed: int) -> None:
    shown = (0.005, 0.02, 0.05, 0.2)
    undecided = (f"undecided, CV {100 * cv:g} %" for cv in shown)
    head(
        "noise", "runs", "coverage", "Welch's", "wrong", "at 2 %", *undecided, "width over Welch's"
    )
    for noise in NOISES:
        for runs in RUNS:
            pairs = {cv: fixed_runs(noise, cv, runs, comparisons, seed) for cv in CVS}
            samples = {cv: fixed_runs(noise, cv, runs, comparisons, seed, welch) for cv in CVS}
            width = np.median([pairs[cv].width / samples[cv].width for cv in CVS])
            undecided = " | ".join(f"{pairs[cv].undecided:.0%}" for cv in shown)
            print(
                f"| {noise} | {runs} | {min(p.coverage for p in pairs.values()):.3f} | "
                f"{min(p.coverage for p in samples.values()):.3f} | "
                f"{max(p.wrong for p in pairs.values()):.1%} | "
                f"{max(p.wrong_at_2_percent for p in pairs.values()):.1%} | {undecided} | "
                f"{width:.2f} |"
            )


def print_adaptive(comparisons: int, seed: int) -> None:
    head("noise", "coverage", "at the edge", "wrong past 2 %", "wrong, any truth", "undecided",
         "runs", "A/A different", "same as 50 runs", "95 % a look: coverage",
         "wrong, any truth")  # fmt: skip
    for noise in NOISES:
        rule = [stratum(noise, cv, comparisons, seed) for cv in (*CVS, 0.4)]
        plain = [stratum(noise, cv, comparisons, seed, confidence=0.95)[1] for cv in (*CVS, 0.4)]
        wide, near, edge, same = zip(*rule, strict=True)
        print(
            f"| {noise} | {min(n.coverage for n in near):.3f} | "
            f"{min(e.coverage for e in edge):.3f} | "
            f"{max(n.wrong_past_2_percent for n in near):.1%} | "
            f"{max(n.wrong for n in near):.1%} | {np.mean([n.undecided for n in near]):.0%} | "
            f"{np.mean([w.runs for w in wide]):.1f} | {max(s.different for s in same):.1%} | "
            f"{min(w.same_as_fixed for w in wide):.1%} | {min(p.coverage for p in plain):.3f} | "
            f"{max(p.wrong for p in plain):.1%} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print_fixed(options.comparisons, options.seed)
    print_adaptive(options.comparisons, options.seed)


if __name__ == "__main__":
    main()
