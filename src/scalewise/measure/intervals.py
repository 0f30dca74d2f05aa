"""Stretches of time as arrays: merged, measured, intersected. Pure functions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Intervals = npt.NDArray[np.int64]
"""Shape ``[n, 2]``: begin and end in nanoseconds."""


def merged(intervals: Intervals) -> Intervals:
    """The same stretches without overlap, in order: what is covered is covered once."""
    if len(intervals) == 0:
        return np.empty((0, 2), dtype=np.int64)
    ordered = intervals[np.argsort(intervals[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ordered[:, 1])
    # A stretch begins anew where it starts after all before it have ended.
    fresh = np.concatenate(([True], ordered[1:, 0] > reach[:-1]))
    last = np.concatenate((fresh[1:], [True]))
    return np.stack((ordered[fresh, 0], reach[last]), axis=1)


def covered_ns(intervals: Intervals) -> int:
    """Time that at least one of them covers."""
    alone = merged(intervals)
    return int((alone[:, 1] - alone[:, 0]).sum())


def shared_ns(left: Intervals, right: Intervals) -> int:
    """Time that both cover: ``|A| + |B| - |A or B|``."""
    both = np.concatenate((left, right))
    return covered_ns(left) + covered_ns(right) - covered_ns(both)
