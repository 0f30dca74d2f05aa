"""What deciding costs: verdicts of ``repeats=auto`` beside those of 50 fixed repeats.

    python benchmarks/deciding_cost.py [--sweeps 2000] [--seed 1]

Synthetic sweeps of the published studies' matrices, with the noise of interval_coverage.py and the
shipped rule. True speedups are those the studies print, those that follow where
they are known to be wrong, and those kept in docs/results. The tables are in docs/statistics.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from interval_coverage import FIXED, NOISES, UNDECIDED, Array, head, log_rates, paired

from scalewise.analysis import MIN_EFFICIENCY
from scalewise.analysis.statistics import CAP, PRECISION, VERDICT_RUNS, look_confidence
from scalewise.analysis.verdict import BENEFICIAL_FROM

PRINTED = (0.82, 0.84, 0.86, 0.82, 0.73, 0.81, 0.78, 0.86, 0.90, 0.88)
MATRICES: dict[str, Sequence[tuple[int, float]]] = {
    "MLPs, 5 batches, as printed": [(2, ratio) for ratio in PRINTED],
    "the same, the batch counted whole": [(2, 2 * ratio) for ratio in PRINTED],
    "LSTM, GRU, Transformer, as printed": [(2, r) for r in (0.72, 0.8, 0.7, 0.78, 0.8, 0.85)],
    "sensor fusion and voxels, as expected": [(2, r) for r in (1.78, 1.56, 1.7, 1.5)],
    "test matrix, as in docs/results": [(2, r) for r in (0.58, 1.65, 0.58, 0.81, 1.81, 1.57)],
    "text classification on 4 GPUs": [(4, r) for r in (3.49, 0.46, 1.85, 3.2)],
    "GPT-2 on 2 GPUs, and as if on 4 and 8": [(2, 1.81), (4, 3.5), (8, 6.6)],
}
"""Devices and true speedup of each pair."""
NEAR: dict[str, Sequence[tuple[int, float]]] = {
    "5 % from the edge": [(2, 1.045), (2, 1.155), (4, 1.9), (4, 2.1), (8, 3.8), (8, 4.2)],
    "1 % from the edge": [(2, 1.089), (2, 1.111), (4, 1.98), (4, 2.02), (8, 3.96), (8, 4.04)],
}
CVS = (0.005, 0.01, 0.02, 0.05, 0.1)
ROUND_S = {
    "2 cores": 2 * (1.9 + 1.6),
    "GPUs, forked": 2 * (3.0 + 3.0),
    "GPUs, fresh": 2 * (13.0 + 3.0),
}
"""Seconds of a round of one pair, one side after the other: start and timed window of each.

On two cores the start is 1.3 s of a cell and half of what a round waits for imports. On two H200s
fresh cells reach their first step after 9 to 17 s; 3 s is what forked ones aim for.
"""
BUDGETS_MIN = (5.0, 10.0)

Codes = npt.NDArray[np.int64]


def verdicts(low: Array, high: Array, wanted: float) -> Codes:
    """0 does not pay, 1 pays, -1 undecided, of log intervals; as ``judge``."""
    return np.select([low >= wanted, high < wanted], [1, 0], UNDECIDED)


@dataclass(frozen=True)
class Looked:
    """Simulated sweeps of one matrix under one noise; arrays have the shape ``[sweeps, pairs]``."""

    devices: Codes
    """Shape ``[pairs]``."""
    fixed: Codes
    """Verdict of 50 repeats at 95 %."""
    truth: Codes
    """Verdict that the true speedup has; shape ``[pairs]``."""
    found: Codes
    """Verdict of each look, shape ``[looks, sweeps, pairs]``; the last one's once it has ended."""
    stop: Codes
    """Index of the look at which a pair ends."""
    looks: Sequence[int]
    """Rounds behind each."""


def simulate(
    pairs: Sequence[tuple[int, float]], noise: str, cv: float, sweeps: int, seed: int, cap: int
) -> Looked:
    """Each pair has a baseline of its own, and as many runs as the larger protocol needs."""
    rng = np.random.default_rng([seed, list(NOISES).index(noise), round(cv * 1000)])
    looks = range(VERDICT_RUNS, cap + 1)
    fixed = np.zeros((sweeps, len(pairs)), dtype=int)
    found = np.zeros((len(looks), *fixed.shape), dtype=int)
    stop = np.full(fixed.shape, len(looks) - 1)
    truths = np.zeros(len(pairs), dtype=int)
    for column, (devices, truth) in enumerate(pairs):
        wanted = math.log(max(BENEFICIAL_FROM, MIN_EFFICIENCY * devices))
        single, multi = log_rates(rng, noise, cv, (sweeps, max(FIXED, cap)))
        multi = multi + math.log(truth)
        truths[column] = verdicts(*[np.array([math.log(truth)])] * 2, wanted)[0]
        fixed[:, column] = verdicts(*paired(single[:, :FIXED], multi[:, :FIXED], 0.05), wanted)
        has_ended = np.zeros(sweeps, dtype=bool)
        for i, runs in enumerate(looks):
            low, high = paired(single[:, :runs], multi[:, :runs], 1 - look_confidence())
            now = verdicts(low, high, wanted)
            found[i, :, column] = np.where(has_ended, found[i - 1, :, column], now)
            ends = (now != UNDECIDED) | (high - low <= math.log1p(PRECISION)) | (runs == cap)
            stop[ends & ~has_ended, column] = i
            has_ended |= ends
    devices = np.array([one for one, _ in pairs])
    return Looked(devices, fixed, truths, found, stop, looks)


@dataclass(frozen=True)
class Reached:
    """Shares over pairs of all sweeps."""

    same: float
    """The verdict of 50 repeats, undecided ones included."""
    same_where_decided: float
    """Of what 50 repeats decide."""
    contradicted: float
    """Decided otherwise than by 50 repeats."""
    wrong: float
    """Decided otherwise than the true speedup."""
    undecided: float
    undecided_by_fixed: float
    device_time: float
    """Over that of 50 repeats: runs times devices."""
    minutes: float
    """Wall time of a sweep, one run after the other."""


def reach(looked: Looked, round_s: float = 0.0, budget_s: float = math.inf) -> Reached:
    """What the sweeps end with, if rounds are added only as long as they end within ``budget_s``.

    As the engine plans: every pair runs up to the first look, whatever it takes. Then those that
    are open run up to their next look, as many of them as fit.
    """
    found, weights = looked.found, 1 + looked.devices
    goes_on = np.ones(looked.stop.shape, dtype=bool)
    runs, verdict, spent_s = np.zeros(goes_on.shape), found[0], np.zeros(len(goes_on))
    for i, look in enumerate(looked.looks):
        more = look - (looked.looks[i - 1] if i else 0)
        goes_on &= looked.stop >= i
        if i:
            goes_on &= spent_s[:, None] + goes_on.cumsum(axis=1) * more * round_s <= budget_s
        runs += goes_on * more
        spent_s += goes_on.sum(axis=1) * more * round_s
        verdict = np.where(goes_on, found[i], verdict)
    decided, same = looked.fixed != UNDECIDED, verdict == looked.fixed
    return Reached(
        float(same.mean()),
        float(same[decided].mean()) if decided.any() else math.nan,
        float((decided & (verdict != UNDECIDED) & ~same).mean()),
        float(((verdict != UNDECIDED) & (verdict != looked.truth)).mean()),
        float((verdict == UNDECIDED).mean()),
        float((~decided).mean()),
        float((runs * weights).sum() / (FIXED * len(runs) * weights.sum())),
        float(spent_s.mean()) / 60,
    )


def over_all(
    noise: str, cv: float, sweeps: int, seed: int, cap: int = CAP, **budget: float
) -> Reached:
    """The mean over the matrices, each of which counts alike."""
    found = [reach(simulate(m, noise, cv, sweeps, seed, cap), **budget) for m in MATRICES.values()]
    return Reached(*np.nanmean([list(vars(one).values()) for one in found], axis=0).tolist())


def print_noises(sweeps: int, seed: int) -> None:
    head("noise", "CV", "same", "of what 50 decide", "contradicted", "wrong", "undecided",
         "undecided by 50", "device time")  # fmt: skip
    for noise in NOISES:
        for cv in CVS:
            found = over_all(noise, cv, sweeps, seed)
            print(
                f"| {noise} | {100 * cv:g} % | {found.same:.1%} | {found.same_where_decided:.1%} | "
                f"{found.contradicted:.2%} | {found.wrong:.2%} | {found.undecided:.1%} | "
                f"{found.undecided_by_fixed:.1%} | {found.device_time:.1%} |"
            )


def print_matrices(sweeps: int, seed: int) -> None:
    shown = (0.005, 0.02, 0.05)
    each = (f"{word}, CV {100 * cv:g} %" for cv in shown for word in ("same", "undecided", "time"))
    head("matrix, symmetric noise", "pairs", *each)
    for name, pairs in (MATRICES | NEAR).items():
        cells = []
        for cv in shown:
            found = reach(simulate(pairs, "symmetric", cv, sweeps, seed, CAP))
            cells += [f"{found.same:.1%}", f"{found.undecided:.1%}", f"{found.device_time:.1%}"]
        print(f"| {name} | {len(pairs)} | {' | '.join(cells)} |")


def print_budgets(sweeps: int, seed: int) -> None:
    head("budget", "a round of a pair", "CV", "same", "contradicted", "undecided", "device time",
         "ends after")  # fmt: skip
    for minutes in BUDGETS_MIN:
        for host, round_s in ROUND_S.items():
            for cv in (0.01, 0.02, 0.05):
                limits = {"round_s": round_s, "budget_s": 60 * minutes}
                found = over_all("symmetric", cv, sweeps, seed, **limits)
                print(
                    f"| {minutes:g} min | {host}: {round_s:g} s | {100 * cv:g} % | "
                    f"{found.same:.1%} | {found.contradicted:.2%} | {found.undecided:.1%} | "
                    f"{found.device_time:.1%} | {found.minutes:.1f} min |"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweeps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for table in (print_noises, print_matrices, print_budgets):
        table(options.sweeps, options.seed)


if __name__ == "__main__":
    main()
