"""Equal devices get equal shares; devices that are shown to differ get what they are worth."""

from __future__ import annotations

import numpy as np
import pytest

from scalewise.config import whole_samples
from scalewise.train.strategies.device_speeds import BLOCKS, compare


def blocks(*speeds: float, noise: float = 0.2, seed: int = 0) -> list[list[float]]:
    scatter = np.random.default_rng(seed).normal(0.0, noise, (len(speeds), BLOCKS))
    return (np.array(speeds)[:, None] * np.exp(scatter)).tolist()


def test_equal_devices_get_equal_shares_whatever_the_noise() -> None:
    """Shares of 41/59, 58/42 and 51/49 were given to two equal devices."""
    split = [
        whole_samples(128, compare(blocks(100.0, 100.0, seed=seed)).weights) for seed in range(200)
    ]
    assert split.count((64, 64)) >= 198
    assert len({tuple(map(round, one)) for one in blocks(100.0, 100.0)}) == 2, "they did differ"


@pytest.mark.parametrize(
    ("speeds", "split"),
    [((200.0, 100.0), (85, 43)), ((100.0, 300.0), (32, 96)), ((300.0, 300.0, 100.0), (55, 55, 18))],
)
def test_unlike_devices_get_what_they_are_worth(
    speeds: tuple[float, ...], split: tuple[int, ...]
) -> None:
    found = compare(blocks(*speeds, noise=0.02))
    sizes = whole_samples(128, found.weights)
    assert all(abs(a - b) <= 1 for a, b in zip(sizes, split, strict=True))
    for (value, low, high), speed in zip(found.ratios, speeds, strict=True):
        assert low <= speed / max(speeds) <= high
        assert (high < 1) == (speed < max(speeds))
        assert low <= value <= high


def test_what_slows_a_whole_block_is_no_difference() -> None:
    crowd = np.linspace(1.0, 0.3, BLOCKS)
    speeds = [(speed * crowd).tolist() for speed in (100.0, 98.0)]
    assert compare(speeds).weights[0] > compare(speeds).weights[1]
