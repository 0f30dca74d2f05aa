"""When a sweep will have ended, from what its cells have taken so far. Pure functions."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scalewise.sweep.schedule import Busy, Waiting, makespan

_Kind = tuple[str, int | None]
"""A workload and the devices it runs on; None for any number of them."""
_UNKNOWN_CV = 0.25
"""Relative spread assumed of repeats while no configuration has been measured twice."""
_UNLIKE_SIGMA = 0.7
"""Standard deviation assumed of the log duration of a configuration nobody has measured, while
fewer than two others have been."""
_BEYOND_THE_MEAN = math.sqrt(2 / math.pi)
_Z_90 = 1.6449
"""Standard normal quantile of a two-sided 90 % interval."""


@dataclass(frozen=True)
class Measured:
    """A cell that has ended with a result."""

    config_id: str
    seconds: float
    workload: str = "train"
    width: int | None = None
    """Devices it ran on; None if that is not known."""
    start_s: float | None = None
    """Of ``seconds``, until training began; None if its heartbeats do not tell."""
    end_s: float | None = None
    """Of ``seconds``, after the last step; None if its heartbeats do not tell."""


@dataclass(frozen=True)
class Remaining:
    """A cell without a result."""

    key: str
    config_id: str
    width: int
    elapsed_s: float | None = None
    """Since its supervisor started; None if it does not run."""
    steps_left_s: float | None = None
    """Until its last step at the pace of its heartbeats; None if they do not tell."""
    workload: str = "train"


@dataclass(frozen=True)
class Expected:
    """How long a cell will take."""

    seconds: float
    spread_s: float
    """Standard deviation of one run."""
    error_s: float
    """Standard error of ``seconds`` itself, shared by all cells of the configuration."""


@dataclass(frozen=True)
class Estimate:
    """Seconds until the last cell has ended, with an interval that holds it in 9 cases of 10."""

    seconds_left: float
    low_s: float
    high_s: float
    measured_cells: int
    """On how many finished cells it rests."""


class Durations:
    """What is known of the durations of a sweep's cells.

    A cell is expected to take the mean of the finished cells of its configuration. The spread of
    repeats is pooled over all configurations, as a share of the mean. A configuration that has
    no finished cell is expected to take the geometric mean of those of its workload that have: how
    long a search for the batch size takes says nothing of training. Of those, only the ones on as
    many devices where there are any: more ranks take longer to start and to meet.
    """

    def __init__(self, measured: Sequence[Measured]) -> None:
        by_config: dict[str, list[float]] = {}
        for one in measured:
            by_config.setdefault(one.config_id, []).append(one.seconds)
        self._by_config = by_config
        self.count = len(measured)
        self._cv = _pooled_cv(list(by_config.values()))
        kinds = {one.config_id: (one.workload, one.width) for one in measured}
        logs: dict[_Kind, list[float]] = {}
        for config_id, seconds in by_config.items():
            mean = max(statistics.fmean(seconds), 1e-3)
            for kind in {kinds[config_id], (kinds[config_id][0], None)}:
                logs.setdefault(kind, []).append(math.log(mean))
        self._logs = logs
        self._starts_s = _by_kind(measured, lambda one: one.start_s)
        self._ends_s = _by_kind(measured, lambda one: one.end_s)

    def of(self, config_id: str, workload: str, width: int | None = None) -> Expected | None:
        """On ``width`` devices; None while nothing like it has been measured."""
        own = self._by_config.get(config_id)
        if own:
            mean = statistics.fmean(own)
            spread = mean * self._cv
            return Expected(mean, spread, spread / math.sqrt(len(own)))
        logs = self._logs.get((workload, width)) or self._logs.get((workload, None))
        if logs is None:
            return None
        typical = math.exp(statistics.fmean(logs))
        sigma = statistics.stdev(logs) if len(logs) > 1 else _UNLIKE_SIGMA
        return Expected(typical, typical * self._cv, typical * math.expm1(sigma))

    def left_of(self, cell: Remaining) -> Expected | None:
        """What is left of a cell that runs, or all of one that does not."""
        expected = self.of(cell.config_id, cell.workload, cell.width)
        if cell.elapsed_s is None:
            return expected
        if cell.steps_left_s is None:
            return None if expected is None else self._left_of_starting(cell, expected)
        by_steps = cell.steps_left_s + (_typical(self._ends_s, cell) or 0.0)
        if expected is None:
            return Expected(by_steps, by_steps * self._cv, 0.0)
        by_cells = max(expected.seconds - cell.elapsed_s, 0.0)
        if cell.config_id in self._by_config:
            # Steps know this run's pace, finished cells what comes after the last step.
            return Expected(max(by_cells, by_steps), expected.spread_s, expected.error_s)
        return Expected(by_steps, by_steps * self._cv, 0.0)

    def _left_of_starting(self, cell: Remaining, expected: Expected) -> Expected:
        """Of a cell that has not taken a step: all its training is still to come.

        How long one of a configuration that nobody has measured will yet start is not known: no
        shorter than a start takes.
        """
        assert cell.elapsed_s is not None
        rest = _rest(expected, cell.elapsed_s)
        start_s = _typical(self._starts_s, cell)
        if start_s is None:
            return rest
        training_s = max(expected.seconds - start_s, 0.0)
        # A start that is late may as well be late by as much again.
        seconds = max(rest.seconds, abs(start_s - cell.elapsed_s) + training_s)
        if cell.config_id not in self._by_config:
            seconds = max(seconds, start_s)
        return Expected(seconds, rest.spread_s, rest.error_s)


def _by_kind(
    measured: Sequence[Measured], part: Callable[[Measured], float | None]
) -> dict[_Kind, list[float]]:
    """A part of the time of each cell that tells it, by workload and devices, and by workload."""
    found: dict[_Kind, list[float]] = {}
    for one in measured:
        seconds = part(one)
        if seconds is not None:
            for kind in {(one.workload, one.width), (one.workload, None)}:
                found.setdefault(kind, []).append(seconds)
    return found


def _typical(parts: Mapping[_Kind, Sequence[float]], cell: Remaining) -> float | None:
    """The median of cells like this one; None where there are none."""
    known = parts.get((cell.workload, cell.width)) or parts.get((cell.workload, None))
    return statistics.median(known) if known else None


def _rest(expected: Expected, elapsed_s: float) -> Expected:
    """What is left of a cell that has run for ``elapsed_s`` and tells nothing of itself.

    Never nothing: at the time when it was to end it has left what a normal distribution leaves
    beyond its mean, sqrt(2/pi) standard deviations. From then on it is of a kind that the others
    do not tell of, and may as well take as long again as it is late.
    """
    late_s = elapsed_s - expected.seconds
    if late_s <= 0:
        seconds = max(-late_s, _BEYOND_THE_MEAN * expected.spread_s)
        return Expected(seconds, expected.spread_s, expected.error_s)
    seconds = max(late_s, _BEYOND_THE_MEAN * expected.spread_s)
    return Expected(seconds, max(late_s, expected.spread_s), expected.error_s)


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


@dataclass
class Outlook:
    """A sweep's own look at its estimate: anew when something ended, every few seconds, and when
    half the time that was left has passed: a cell that is late must not count down to nothing."""

    every_s: float = 5.0
    _asked_at: float = -math.inf
    _asked_of: int = -1
    _answer: float | None = None

    def seconds_left(
        self,
        measured: Sequence[Measured],
        remaining: Callable[[], Sequence[Remaining]],
        slots: int | None,
        packed: bool,
    ) -> float | None:
        """As :func:`estimate`; between two looks the time that passed is taken off."""
        now = time.monotonic()
        valid_s = self.every_s if self._answer is None else min(self.every_s, self._answer / 2)
        if len(measured) != self._asked_of or now - self._asked_at >= valid_s:
            cells = remaining()
            found = estimate(measured, cells, *places(cells, slots, packed))
            self._answer = None if found is None else found.seconds_left
            self._asked_at, self._asked_of = now, len(measured)
        return None if self._answer is None else max(0.0, self._answer - (now - self._asked_at))


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


def _pooled_cv(groups: Sequence[Sequence[float]]) -> float:
    """Coefficient of variation of repeats, pooled over configurations measured twice or more.

    Few repeats say little about their own spread: the assumed one counts as two of them.
    """
    repeated = [g for g in groups if len(g) > 1]
    freedom = sum(len(g) - 1 for g in repeated)
    squares = sum((v / statistics.fmean(g) - 1) ** 2 for g in repeated for v in g)
    return math.sqrt((squares + 2 * _UNKNOWN_CV**2) / (freedom + 2))


def _standard_error(remaining: Sequence[Remaining], expected: Sequence[Expected]) -> float:
    """Of the summed durations: runs err independently, the mean of a configuration for all."""
    shared: dict[str, float] = {}
    for cell, one in zip(remaining, expected, strict=True):
        shared[cell.config_id] = shared.get(cell.config_id, 0.0) + one.error_s
    own = sum(one.spread_s**2 for one in expected)
    return math.sqrt(own + sum(error**2 for error in shared.values()))
