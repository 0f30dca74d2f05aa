"""When a sweep will have ended, by what its cells are expected to take. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scalewise.sweep.durations import Durations, Expected, Measured, Remaining
from scalewise.sweep.schedule import Busy, Waiting, makespan

_Z_90 = 1.6449
"""Standard normal quantile of a two-sided 90 % interval."""


@dataclass(frozen=True)
class Estimate:
    """Seconds until the last cell has ended, with an interval that holds it in 9 cases of 10."""

    seconds_left: float
    low_s: float
    high_s: float
    measured_cells: int
    """On how many finished cells it rests."""


def estimate(
    measured: Sequence[Measured],
    remaining: Sequence[Remaining],
    slots: int,
    packed: bool = False,
    between_s: float = 0.0,
) -> Estimate | None:
    """When ``remaining`` will have ended on ``slots`` slots.

    ``between_s`` passes between the end of a cell and the start of the next. None if nothing has
    been measured yet and no heartbeat tells either.
    """
    if not remaining:
        return Estimate(0.0, 0.0, 0.0, len(measured))
    known = Durations([*measured, *_running_totals(measured, remaining)])
    left = [known.left_of(cell) for cell in remaining]
    expected = [one for one in left if one is not None]
    if len(expected) < len(left):
        return None
    waiting = [
        Waiting(cell.key, min(cell.width, slots), one.seconds + between_s)
        for cell, one in zip(remaining, expected, strict=True)
        if cell.elapsed_s is None
    ]
    running = [
        Busy(min(cell.width, slots), one.seconds)
        for cell, one in zip(remaining, expected, strict=True)
        if cell.elapsed_s is not None
    ]
    work_s = sum(w.expected_s or 0.0 for w in waiting) + sum(b.left_s for b in running)
    seconds = makespan(waiting, running, slots) if packed else work_s
    relative = _standard_error(remaining, expected) / work_s if work_s else 0.0
    # As wide downwards on a scale of ratios: no work takes no time, however little is known of it.
    factor = 1 + _Z_90 * relative
    floor = max(cell.steps_left_s or 0.0 for cell in remaining)
    low = max(seconds / factor, min(floor, seconds))
    return Estimate(seconds, low, seconds * factor, len(measured))


def places(remaining: Sequence[Remaining], slots: int | None, packed: bool) -> tuple[int, bool]:
    """Slots and packing to estimate with, where ``slots`` of one host are known or not.

    A cluster runs cells side by side whatever the policy on each of its hosts, as many as it
    grants: taken to be as many as run now.
    """
    if slots is not None:
        return slots, packed
    running = sum(cell.width for cell in remaining if cell.elapsed_s is not None)
    return max([running, 1, *(cell.width for cell in remaining)]), True


def _running_totals(measured: Sequence[Measured], remaining: Sequence[Remaining]) -> list[Measured]:
    """What running cells of configurations without a finished one will take, by their steps."""
    finished = {one.config_id for one in measured}
    return [
        Measured(cell.config_id, cell.elapsed_s + cell.steps_left_s, cell.workload, cell.width)
        for cell in remaining
        if cell.elapsed_s is not None
        and cell.steps_left_s is not None
        and cell.config_id not in finished
    ]


def _standard_error(remaining: Sequence[Remaining], expected: Sequence[Expected]) -> float:
    """Of the summed durations: runs err independently, the mean of a configuration for all."""
    shared: dict[str, float] = {}
    for cell, one in zip(remaining, expected, strict=True):
        shared[cell.config_id] = shared.get(cell.config_id, 0.0) + one.error_s
    own = sum(one.spread_s**2 for one in expected)
    return math.sqrt(own + sum(error**2 for error in shared.values()))
