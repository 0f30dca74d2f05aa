"""Parts that are switched on and off inside one run: the order of the windows, and what they say.

A run is cut into windows of random length, two of them a pair. Every factor of a pair is on in one
of its windows and off in the other, and which comes first is drawn for each factor by itself. A
pair's second window so has the complement of its first: a fold-over of a random two-level factorial
(Box, Hunter & Hunter, *Statistics for Experimenters*, 2nd ed., ch. 6). Every pair estimates every
factor, an effect of two factors together is in none of the estimates, and a drift of the host is
equally often for a factor as against it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

SHORTEST_S, LONGEST_S = 0.4, 0.9
"""Of a window: what beats once a second falls into another place of each."""
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
    """95 % interval over pairs; None from fewer than eight, or than three a factor."""
    pairs: int


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


def estimate_factors(
    pairs: Sequence[tuple[tuple[set[str], float], tuple[set[str], float]]],
    factors: Sequence[str],
    seed: int = 0,
) -> dict[str, Ratio]:
    """The ratio of every factor, by least squares on the logarithms of the pairs' ratios.

    A pair is two of (what was on, step time), in their order in time.
    """
    signs = np.array([[1.0 if f in first else -1.0 for f in factors] for (first, _), _ in pairs])
    logs = np.array([math.log(one / other) for (_, one), (_, other) in pairs])
    found = _fit(signs, logs)
    spread = resample_blocks(signs, logs, seed)
    return {
        factor: _ratio(float(found[place]), spread[:, place], len(pairs), len(factors))
        for place, factor in enumerate(factors)
    }


def estimate_ratio(over: Sequence[float], under: Sequence[float], seed: int = 0) -> Ratio:
    """The ratio of two arms that took turns, a step time a round of each."""
    logs = np.log(np.array(over) / np.array(under))
    ones = np.ones((len(logs), 1))
    return _ratio(float(logs.mean()), resample_blocks(ones, logs, seed)[:, 0], len(logs), 1)


def resample_blocks(signs: Floats, logs: Floats, seed: int) -> Floats:
    """Effects ``[draws, factors]`` of pairs drawn anew, in blocks of ``sqrt(n)`` successive ones.

    The blocks overlap and wrap round (circular block bootstrap, Politis & Romano 1992), so that
    neighbours which are alike stay together and every pair is drawn equally often.
    """
    rng = np.random.default_rng(seed)
    count = len(logs)
    length = _block_length(count)
    starts = rng.integers(0, count, (DRAWS, math.ceil(count / length)))
    rows = (starts[:, :, None] + np.arange(length)).reshape(DRAWS, -1)[:, :count] % count
    return np.array([_fit(signs[drawn], logs[drawn]) for drawn in rows])


def _fit(signs: Floats, logs: Floats) -> Floats:
    effects: Floats = np.linalg.lstsq(signs, logs, rcond=None)[0]
    return effects


def _ratio(found: float, drawn: Floats, pairs: int, factors: int) -> Ratio:
    if pairs < max(8, 3 * factors):
        return Ratio(math.exp(found), None, None, pairs)
    # Resampled effects scatter too little: of few blocks, and of residuals of a fit.
    blocks = pairs / _block_length(pairs)
    wider = float(stats.t.ppf(0.975, blocks - 1)) * math.sqrt(pairs / (pairs - factors))
    half = wider * float(drawn.std())
    return Ratio(math.exp(found), math.exp(found - half), math.exp(found + half), pairs)


def _block_length(pairs: int) -> int:
    return max(1, round(math.sqrt(pairs)))
