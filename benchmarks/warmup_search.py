"""What the search for the end of warm-up finds in simulated steps of known level.

    python benchmarks/warmup_search.py [--runs 400] [--seed 1]

Steps of 10 ms with log-normal noise, independent or AR(1), every hundredth of them ten times as
long, after 20 steps that are never timed. First without warm-up: whatever is left out is left out
needlessly. Then with an exponential and a sudden end of warm-up at a quarter of the timed steps.
Beside it stands plain MSER-5: means of five steps, and half of the steps at most.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

from scalewise.analysis.warmup import BATCH, find_first, squared_errors

Array = npt.NDArray[np.float64]
Search = Callable[[Array], tuple[str, int]]

LEAST = 20
TIMED = (60, 200, 1000)
CVS = (0.01, 0.05, 0.2)
CORRELATIONS = (0.0, 0.5, 0.9)
LONG_STEPS = 0.01
LONG = 10.0


@dataclass(frozen=True)
class Found:
    """Over all simulated runs of one kind."""

    first: Array
    """The first timed step of each run."""
    not_steady: float
    """Share of the runs."""
    mean_ratio: Array
    """Mean of the timed steps over what it should be."""

    @property
    def later(self) -> float:
        return float((self.first > LEAST).mean())


def with_guards(step_ms: Array) -> tuple[str, int]:
    rule, first, _ = find_first(step_ms, LEAST)
    return rule, first


def plain(step_ms: Array) -> tuple[str, int]:
    timed = step_ms[LEAST:]
    batches = timed[: len(timed) // BATCH * BATCH].reshape(-1, BATCH).mean(axis=1)
    errors = squared_errors(batches)[: len(batches) // 2 + 1]
    return "MSER-5", LEAST + BATCH * int(errors.argmin())


def steps(
    rng: np.random.Generator, count: int, cv: float, correlation: float, *, long: bool
) -> Array:
    """Simulated step times in ms, shape ``[count]``; the first one is of a cold start."""
    shocks = rng.standard_normal(count + 100) * np.sqrt(1 - correlation**2)
    noise = lfilter([1.0], [1.0, -correlation], shocks)[100:]
    times = 10.0 * np.exp(cv * noise)
    times[rng.random(count) < LONG_STEPS * long] *= LONG
    times[0] *= 20
    return np.asarray(times)


def search(series: Sequence[Array], truth: Sequence[float], find: Search) -> Found:
    ends = [find(one) for one in series]
    ratios = [
        one[first:].mean() / true for one, (_, first), true in zip(series, ends, truth, strict=True)
    ]
    return Found(
        np.array([first for _, first in ends]),
        sum(rule == "not steady" for rule, _ in ends) / len(ends),
        np.array(ratios),
    )


def without_warmup(rng: np.random.Generator, runs: int) -> None:
    print("| timed steps | noise | cut | not steady | mean off by | plain: cut | mean off by |")
    print("|---:|---|---:|---:|---:|---:|---:|")
    for timed in TIMED:
        for correlation in CORRELATIONS:
            for cv in CVS:
                series = [
                    steps(rng, LEAST + timed, cv, correlation, long=True) for _ in range(runs)
                ]
                truth = [float(one[LEAST:].mean()) for one in series]
                ours, theirs = (search(series, truth, find) for find in (with_guards, plain))
                noise = f"{cv:.0%}" + (f", AR(1) {correlation}" if correlation else "")
                print(
                    f"| {timed} | {noise} | {ours.later:.1%} | {ours.not_steady:.1%} "
                    f"| {_off(ours)} | {theirs.later:.1%} | {_off(theirs)} |"
                )


def _off(found: Found) -> str:
    ratios = found.mean_ratio
    return f"{ratios.mean() - 1:+.2%} ± {ratios.std():.2%}"


def with_warmup(rng: np.random.Generator, runs: int) -> None:
    print(
        "| timed steps | noise | warm-up | ends | found (10, 50, 90 %) | not steady | mean off by "
        "| by the count |"
    )
    print("|---:|---|---|---:|---|---:|---:|---:|")
    for timed in TIMED:
        end = LEAST + timed // 4
        for cv, correlation in ((0.01, 0.0), (0.05, 0.5), (0.2, 0.0)):
            for kind, factor in _warm_ups(LEAST + timed, end).items():
                series = [
                    factor * steps(rng, LEAST + timed, cv, correlation, long=False)
                    for _ in range(runs)
                ]
                truth = [float((one / factor)[LEAST:].mean()) for one in series]
                ours = search(series, truth, with_guards)
                by_count = search(series, truth, lambda one: ("count", LEAST))
                found = ", ".join(f"{step:.0f}" for step in np.percentile(ours.first, [10, 50, 90]))
                noise = f"{cv:.0%}" + (f", AR(1) {correlation}" if correlation else "")
                print(
                    f"| {timed} | {noise} | {kind} | {end} | {found} | {ours.not_steady:.1%} "
                    f"| {ours.mean_ratio.mean() - 1:+.2%} | {by_count.mean_ratio.mean() - 1:+.2%} |"
                )


def _warm_ups(count: int, end: int) -> dict[str, Array]:
    """Factors of the steps, shape ``[count]``; the exponentials are down to 3 % at ``end``."""
    at = np.arange(count)
    return {
        "+10 % until then": np.where(at < end, 1.1, 1.0),
        "+50 % until then": np.where(at < end, 1.5, 1.0),
        "exponential from +50 %": 1 + 0.5 * (0.03 / 0.5) ** (at / end),
        "exponential from +200 %": 1 + 2.0 * (0.03 / 2.0) ** (at / end),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    without_warmup(rng, options.runs)
    print()
    with_warmup(rng, options.runs)


if __name__ == "__main__":
    main()
