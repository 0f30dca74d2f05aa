"""Dividing data into a part to train on and a part to judge by."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scalewise.ranges import require


def check_split(validation_fraction: float) -> None:
    """Refuse a fraction that leaves nothing to train on."""
    require(
        "validation_fraction",
        validation_fraction,
        0 <= validation_fraction < 1,
        "0 <= validation_fraction < 1 (0: no validation)",
    )


def held_out_of(count: int, validation_fraction: float) -> int:
    """How many of ``count`` samples :func:`split_indices` keeps for validation."""
    if validation_fraction == 0 or count < 2:
        return 0
    return min(count - 1, max(1, round(count * validation_fraction)))


def split_indices(
    count: int, validation_fraction: float, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """``(train, validation)``: every index below ``count`` once, in a random order of ``seed``.

    At least one index goes to validation unless the fraction is 0, and at least one to training.
    """
    order = np.random.default_rng(seed).permutation(count)
    held_out = held_out_of(count, validation_fraction)
    return order[held_out:], order[:held_out]
