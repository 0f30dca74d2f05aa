"""Step times beside a sampler that reads and that sleeps: what the difference is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

HZ = 10
_GUARD_NS = 50_000_000
"""After each switch, steps of so long belong to neither window."""
_NEAR_NS = 10_000_000


@dataclass(frozen=True)
class Window:
    """A stretch of time with the sampler or without; times are ``perf_counter_ns``, which all
    processes of a host share."""

    pair: int
    sampled: bool
    begin_ns: int
    end_ns: int


def judge_windows(
    ranks: Sequence[npt.NDArray[np.void]], windows: Sequence[Window]
) -> dict[str, Any]:
    """Step time with the sampler over without: the mean, and the median, of each window's steps.

    ``ranks`` are rows of ``STEP_DTYPE``; the slowest rank's time counts. A pair counts where both
    windows hold ten steps or more; ``interval95`` is over pairs.
    """
    from scalewise.analysis import estimate_mean

    line = "host" if any(np.isnan(rows["device_step_ms"]).any() for rows in ranks) else "device"
    times: dict[int, dict[bool, npt.NDArray[np.float64]]] = {}
    for window in windows:
        found = [_inside(rows, window)[f"{line}_step_ms"].astype(np.float64) for rows in ranks]
        if found and min(map(len, found)) >= 10:
            slowest = max(found, key=lambda ms: float(ms.mean()))
            times.setdefault(window.pair, {})[window.sampled] = slowest
    pairs = [(pair[True], pair[False]) for pair in times.values() if len(pair) == 2]
    if len(pairs) < 2:
        raise SystemExit(f"only {len(pairs)} pairs of windows hold ten steps or more: longer ones")
    ratios = [float(on.mean() / off.mean()) for on, off in pairs]
    medians = [float(np.median(on) / np.median(off)) for on, off in pairs]
    found_ratios = {}
    for name, values in (("mean", ratios), ("median", medians)):
        logs = estimate_mean([math.log(v) for v in values])
        span = logs.interval
        found_ratios[name] = {
            "ratio": math.exp(logs.value),
            "interval95": [math.exp(span.low), math.exp(span.high)] if span else None,
        }
    return {
        "timeline": line, "world_size": len(ranks), "pairs": len(pairs),
        "steps": sum(len(on) + len(off) for on, off in pairs),
        "step_time_ms": float(np.median([off.mean() for _, off in pairs])),
        "of_means": found_ratios["mean"], "of_medians": found_ratios["median"], "ratios": ratios,
    }  # fmt: skip


def judge_readings(
    ranks: Sequence[npt.NDArray[np.void]], readings_ns: Sequence[int]
) -> dict[str, Any] | None:
    """What a reading adds to the steps beside it, in ms, and what that makes at 10 Hz.

    Steps that end after a reading begins and begin within ``_NEAR_NS`` of it are beside it; the
    others that begin before the next reading is due are not. None where steps are too long for
    that. ``interval95`` is over readings.
    """
    from scalewise.analysis import estimate_mean

    excess_ms = []
    for at in readings_ns:
        far, near = _around(ranks[0], at)
        if len(near) >= 2 and len(far) >= 10:
            excess_ms.append(float((near - far.mean()).sum()))
    if len(excess_ms) < 10:
        return None
    found = estimate_mean(excess_ms)
    assert found.interval is not None
    ratio = 1 + HZ * found.value / 1e3
    return {
        "readings": len(excess_ms), "excess_ms": found.value, "ratio": ratio,
        "interval95": [1 + HZ * v / 1e3 for v in (found.interval.low, found.interval.high)],
    }  # fmt: skip


def _around(
    rows: npt.NDArray[np.void], at: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Step times in ms far from a reading that begins ``at``, and beside it."""
    begun = rows["start_ns"]
    next_at = at + 1_000_000_000 // HZ
    low, high = np.searchsorted(begun, [at - _NEAR_NS, next_at])
    part, line = rows[low:high], "host" if np.isnan(rows["device_step_ms"]).any() else "device"
    times_ms = part[f"{line}_step_ms"].astype(np.float64)
    ended = part["start_ns"] + (1e6 * part["host_step_ms"]).astype(np.int64)
    near = (ended > at) & (part["start_ns"] < at + _NEAR_NS)
    far = (part["start_ns"] >= at + _NEAR_NS) & (ended <= next_at)
    return times_ms[far], times_ms[near]


def _inside(rows: npt.NDArray[np.void], window: Window) -> npt.NDArray[np.void]:
    """Steps that begin after the guard and before the window's end, but for the last of them."""
    begun = rows["start_ns"]
    return rows[(begun >= window.begin_ns + _GUARD_NS) & (begun < window.end_ns)][:-1]
