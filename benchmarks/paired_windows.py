"""Parts that are switched on and off inside one run: the order of the windows, and what they say.

A run is cut into windows of random length, two of them a pair. Every factor of a pair is on in one
of its windows and off in the other, and which comes first is drawn for each factor by itself. A
pair's second window so has the complement of its first: a fold-over of a random two-level factorial
(Box, Hunter & Hunter, *Statistics for Experimenters*, 2nd ed., ch. 6).

A few factors are estimated from the ratios of their pairs, many from their windows: the logarithm
of the step time is regressed on the switches and a slow drift. Ratios of complements hide that two
factors make a mode of their own, and setting its windows aside would halve their pairs;
:func:`find_interactions` looks for such modes.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

SHORTEST_S, LONGEST_S = 0.4, 0.9
"""Of a window: what beats once a second falls into another place of each."""
DRIFT_COSINES = 8
"""The fastest drift that is taken off goes up and down four times in a run."""
DRAWS = 4000
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Window:
    """A stretch of steps in one state."""

    pair: int
    design: str
    on: tuple[str, ...]
    seconds: float
    """Meant to last so long."""


@dataclass(frozen=True)
class Ratio:
    """Step time with a factor on over that with it off."""

    value: float
    low: float | None
    high: float | None
    """95 % interval; None from fewer than eight samples, or than three a fitted column."""
    count: int
    """Of pairs, of rounds, or of windows."""


def draw_windows(designs: Mapping[str, tuple[Sequence[str], int]], seed: int) -> list[Window]:
    """Windows in their order, the two of a pair beside each other.

    ``designs`` gives the factors of each design and how many pairs it is to have. The pairs of all
    designs come mixed, so that a run that ends early has its share of each.
    """
    rng = random.Random(seed)
    order = [name for name, (_, pairs) in designs.items() for _ in range(pairs)]
    rng.shuffle(order)
    windows = []
    for pair, design in enumerate(order):
        factors = designs[design][0]
        first = tuple(factor for factor in factors if rng.random() < 0.5)
        for on in (first, tuple(factor for factor in factors if factor not in first)):
            windows.append(Window(pair, design, on, rng.uniform(SHORTEST_S, LONGEST_S)))
    return windows


def draw_rounds(design: str, arms: Sequence[str], rounds: int, seed: int) -> list[Window]:
    """Every arm once a round, in a random order."""
    rng = random.Random(seed)
    return [
        Window(number, design, (arm,), rng.uniform(SHORTEST_S, LONGEST_S))
        for number in range(rounds)
        for arm in rng.sample(arms, len(arms))
    ]


def estimate_ratio(over: Sequence[float], under: Sequence[float], seed: int = 0) -> Ratio:
    """The ratio of two arms that took turns, a step time a round of each."""
    logs = np.log(np.array(over) / np.array(under))
    return _estimate(np.ones((len(logs), 1)), logs, 1, seed)[0]


def estimate_pairs(
    pairs: Sequence[tuple[tuple[Collection[str], float], tuple[Collection[str], float]]],
    factors: Sequence[str],
    seed: int = 0,
) -> dict[str, Ratio]:
    """The ratio of every factor, by least squares on the logarithms of the pairs' ratios.

    A pair is two of (what was on, step time), in their order in time.
    """
    signs = np.array([[1.0 if f in first else -1.0 for f in factors] for (first, _), _ in pairs])
    logs = np.array([math.log(one / other) for (_, one), (_, other) in pairs])
    return dict(zip(factors, _estimate(signs, logs, len(factors), seed), strict=True))


def estimate_switches(
    windows: Sequence[tuple[float, Collection[str], float]],
    factors: Sequence[str],
    seed: int = 0,
) -> dict[str, Ratio]:
    """The ratio of every factor, from windows of (seconds since the begin, what was on, step time).

    Least squares of the logarithm of the step time on the switches and the drift's cosines. The
    drift is taken off both sides first (Frisch, Waugh & Lovell), so that all draws share it.
    """
    drift = drift_columns([at for at, _, _ in windows])
    states = np.array([[float(factor in on) for factor in factors] for _, on, _ in windows])
    logs = np.log([step for _, _, step in windows])
    columns = len(factors) + drift.shape[1]
    found = _estimate(_without(drift, states), _without(drift, logs), columns, seed)
    return dict(zip(factors, found, strict=True))


def find_interactions(
    windows: Sequence[tuple[float, Collection[str], float]],
    factors: Sequence[str],
    seed: int = 0,
) -> dict[tuple[str, str], Ratio]:
    """Pairs of factors that together are more, or less, than both alone: the ratio of that.

    One product at a time beside all switches and the drift; those whose interval leaves out 1. The
    intervals are wider, so that all hold in 95 % of runs (Bonferroni).
    """
    drift = drift_columns([at for at, _, _ in windows])
    signs = np.array([[(factor in on) - 0.5 for factor in factors] for _, on, _ in windows])
    logs = np.log([step for _, _, step in windows])
    beside = np.hstack([signs, drift])
    rest = _without(beside, logs)
    products = list(itertools.combinations(range(len(factors)), 2))
    found = {}
    for one, other in products:
        alone = _without(beside, (signs[:, one] * signs[:, other])[:, None])
        wrong = 0.05 / len(products)
        (ratio,) = _estimate(alone, rest, beside.shape[1] + 1, seed, wrong)
        if ratio.low is not None and ratio.high is not None and not ratio.low <= 1 <= ratio.high:
            found[factors[one], factors[other]] = ratio
    return found


def drift_columns(seconds: Sequence[float]) -> Floats:
    """A level and cosines of 0.5, 1, 1.5... periods a run, fewer of few windows: ``[n, k]``."""
    at = np.array(seconds) - min(seconds)
    cosines = min(DRIFT_COSINES, len(at) // 12)
    columns: Floats = np.cos(np.pi * np.outer(at / max(at.max(), 1e-9), np.arange(cosines + 1)))
    return columns


def _without(columns: Floats, values: Floats) -> Floats:
    """What is left of ``values`` when ``columns`` are fitted to them."""
    left: Floats = values - columns @ np.linalg.lstsq(columns, values, rcond=None)[0]
    return left


def _estimate(
    columns: Floats, logs: Floats, fitted: int, seed: int, wrong: float = 0.05
) -> list[Ratio]:
    """The ratio of each column; ``fitted`` counts those that were taken off before, too."""
    spread = resample_blocks(columns, logs, seed)
    return [
        _ratio(effect, spread[:, place], len(logs), fitted, wrong)
        for place, effect in enumerate(_fit(columns, logs).tolist())
    ]


def resample_blocks(columns: Floats, logs: Floats, seed: int) -> Floats:
    """Effects ``[draws, columns]`` of rows drawn anew, in blocks of ``sqrt(n)`` successive ones.

    The blocks overlap and wrap round (circular block bootstrap, Politis & Romano 1992), so that
    neighbours which are alike stay together and every row is drawn equally often.
    """
    rng = np.random.default_rng(seed)
    count = len(logs)
    length = _block_length(count)
    starts = rng.integers(0, count, (DRAWS, math.ceil(count / length)))
    rows = (starts[:, :, None] + np.arange(length)).reshape(DRAWS, -1)[:, :count] % count
    return np.array([_fit(columns[drawn], logs[drawn]) for drawn in rows])


def _fit(columns: Floats, logs: Floats) -> Floats:
    effects: Floats = np.linalg.lstsq(columns, logs, rcond=None)[0]
    return effects


def _ratio(found: float, drawn: Floats, count: int, fitted: int, wrong: float) -> Ratio:
    if count < max(8, 3 * fitted):
        return Ratio(math.exp(found), None, None, count)
    # Resampled effects scatter too little: of few blocks, and of residuals of a fit.
    blocks = count / _block_length(count)
    wider = float(stats.t.ppf(1 - wrong / 2, blocks - 1)) * math.sqrt(count / (count - fitted))
    half = wider * float(drawn.std())
    return Ratio(math.exp(found), math.exp(found - half), math.exp(found + half), count)


def _block_length(count: int) -> int:
    return max(1, round(math.sqrt(count)))
