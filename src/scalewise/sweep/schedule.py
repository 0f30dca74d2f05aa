"""Which cells of mixed width to start next on the slots of a host: pure functions.

The decision is taken anew whenever a cell starts or ends, from what each cell is expected to take.
Several orders are tried against a simulation of the rest of the sweep, and the one that is
expected to end first is followed: longest first, widest first, largest first, and small random
changes of the best of them. What the chosen order does not start now keeps its place, so a wide
cell waits only as long as that pays, and never for cells that were asked for later.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_TRIES = 500
_PLACINGS = 12_000
"""Cells placed in all tries of a decision together: devices lie idle while it is taken."""
_SEARCHED = 64
"""Longer queues are ordered by rule alone: a search over them gains nothing and costs time."""
_SHORTEST_S = 1e-3


@dataclass(frozen=True)
class Waiting:
    """A cell that has not started."""

    key: str
    width: int
    """Slots it takes."""
    expected_s: float | None
    """None if nothing like it has been measured: it counts as the median of those that have."""


@dataclass(frozen=True)
class Busy:
    """A cell that runs."""

    width: int
    left_s: float
    """Expected; 0 for one that is overdue."""


def starts_now(
    waiting: Sequence[Waiting], busy: Sequence[Busy], slots: int, seed: int = 0
) -> list[str]:
    """Keys of the cells to start now, in that order, on a host with ``slots`` slots.

    Raises ValueError for a cell that is wider than the host.
    """
    too_wide = next((w for w in waiting if w.width > slots), None)
    if too_wide is not None:
        raise ValueError(f"{too_wide.key}: {too_wide.width} slots; this host has {slots}")
    free = slots - sum(b.width for b in busy)
    if not any(w.width <= free for w in waiting):
        return []
    known = _with_expectations(waiting)
    order = _best_order(known, busy, slots, random.Random(seed))
    return [job.key for job, start in _simulate(order, busy, slots).starts if start == 0.0]


def makespan(waiting: Sequence[Waiting], busy: Sequence[Busy], slots: int) -> float:
    """Expected seconds until everything has ended, started by the longest-first rule."""
    ordered = sorted(_with_expectations(waiting), key=_longest)
    return _simulate(ordered, busy, slots).makespan


@dataclass(frozen=True)
class _Job:
    key: str
    width: int
    seconds: float


@dataclass(frozen=True)
class _Schedule:
    makespan: float
    starts: list[tuple[_Job, float]]


def _with_expectations(waiting: Sequence[Waiting]) -> list[_Job]:
    known = [w.expected_s for w in waiting if w.expected_s is not None]
    typical = statistics.median(known) if known else 1.0
    return [
        _Job(w.key, w.width, typical if w.expected_s is None else max(w.expected_s, _SHORTEST_S))
        for w in waiting
    ]


def _longest(job: _Job) -> tuple[float, ...]:
    return (-job.seconds, -job.width)


def _widest(job: _Job) -> tuple[float, ...]:
    return (-job.width, -job.seconds)


def _largest(job: _Job) -> tuple[float, ...]:
    return (-job.width * job.seconds, -job.width)


_RULES: tuple[Callable[[_Job], tuple[float, ...]], ...] = (_longest, _widest, _largest)


def _best_order(
    jobs: Sequence[_Job], busy: Sequence[Busy], slots: int, rng: random.Random
) -> list[_Job]:
    """The order whose simulation ends first; the earlier rule wins where several do."""
    area = sum(j.width * j.seconds for j in jobs) + sum(b.width * b.left_s for b in busy)
    bound = max([area / slots, *(j.seconds for j in jobs), *(b.left_s for b in busy)])
    orders = [sorted(jobs, key=rule) for rule in _RULES]
    spans = [_simulate(order, busy, slots).makespan for order in orders]
    span = min(spans)
    best = orders[spans.index(span)]
    if len(jobs) > _SEARCHED:
        return best
    for _ in range(min(_TRIES, _PLACINGS // max(1, len(jobs)))):
        if span <= bound * 1.001:
            break
        order = _changed(best, rng)
        tried = _simulate(order, busy, slots).makespan
        if tried <= span:
            best, span = order, tried
    return best


def _changed(order: Sequence[_Job], rng: random.Random) -> list[_Job]:
    """``order`` with one to three cells moved to another place."""
    changed = list(order)
    for _ in range(rng.randint(1, 3)):
        job = changed.pop(rng.randrange(len(changed)))
        changed.insert(rng.randint(0, len(changed)), job)
    return changed


def _simulate(order: Sequence[_Job], busy: Sequence[Busy], slots: int) -> _Schedule:
    """Start each job, in order, as soon as it fits; smaller ones may use what it cannot.

    A job may overtake one before it only if that one still starts as early as it would have.
    """
    # What runs has not ended, however overdue: its slots are not free now.
    ends = [(max(b.left_s, _SHORTEST_S), b.width) for b in busy]
    heapq.heapify(ends)
    free = slots - sum(b.width for b in busy)
    queue = list(order)
    starts: list[tuple[_Job, float]] = []
    now = last = 0.0
    while queue:
        left: list[_Job] = []
        reserved_at, spare = None, 0
        for place, job in enumerate(queue):
            if free == 0:
                left += queue[place:]
                break
            if reserved_at is None:
                fits = job.width <= free
            else:
                in_time = now + job.seconds <= reserved_at
                fits = job.width <= free and (in_time or job.width <= spare)
                if fits and not in_time:
                    spare -= job.width
            if fits:
                starts.append((job, now))
                free -= job.width
                heapq.heappush(ends, (now + job.seconds, job.width))
                last = max(last, now + job.seconds)
            else:
                left.append(job)
                if reserved_at is None:
                    reserved_at, spare = _reservation(job.width, free, ends)
        queue = left
        if queue:
            now, width = heapq.heappop(ends)
            free += width
            while ends and ends[0][0] <= now:
                free += heapq.heappop(ends)[1]
    last = max([last, *(end for end, _ in ends)])
    return _Schedule(last, starts)


def _reservation(width: int, free: int, ends: Sequence[tuple[float, int]]) -> tuple[float, int]:
    """When ``width`` slots will be free, and how many more will be then."""
    when = 0.0
    for when, released in sorted(ends):
        free += released
        if free >= width:
            return when, free - width
    raise AssertionError("no job is wider than the host")
