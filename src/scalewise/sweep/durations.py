"""How long a sweep's cells take, by those that have ended and by what running ones tell of
themselves. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scalewise.records import PlannedCell

_Kind = tuple[str, int | None]
"""A workload and the devices it runs on; None for any number of them."""
_UNKNOWN_CV = 0.25
"""Relative spread assumed of repeats while no configuration has been measured twice."""
_UNLIKE_SIGMA = 0.7
"""Standard deviation assumed of the log duration of a configuration nobody has measured, while
fewer than two others have been."""
_BEYOND_THE_MEAN = math.sqrt(2 / math.pi)


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
        means = {config_id: statistics.fmean(seconds) for config_id, seconds in by_config.items()}
        self.count = len(measured)
        self._cv = _pooled_cv([(means[config_id], by_config[config_id]) for config_id in means])
        self._of_config = {
            config_id: self._expected_of(mean, len(by_config[config_id]))
            for config_id, mean in means.items()
        }
        kinds = {one.config_id: (one.workload, one.width) for one in measured}
        logs: dict[_Kind, list[float]] = {}
        for config_id, mean in means.items():
            for kind in {kinds[config_id], (kinds[config_id][0], None)}:
                logs.setdefault(kind, []).append(math.log(max(mean, 1e-3)))
        self._logs = logs
        self._of_kind: dict[_Kind, Expected] = {}
        """What was asked for so far: thousands of cells ask for the same few."""
        self._start_s = _medians(measured, lambda one: one.start_s)
        self._end_s = _medians(measured, lambda one: one.end_s)

    def of(self, config_id: str, workload: str, width: int | None = None) -> Expected | None:
        """On ``width`` devices; None while nothing like it has been measured."""
        own = self._of_config.get(config_id)
        if own is not None:
            return own
        kinds: tuple[_Kind, ...] = ((workload, width), (workload, None))
        kind = next((one for one in kinds if one in self._logs), None)
        if kind is None:
            return None
        if kind not in self._of_kind:
            self._of_kind[kind] = self._expected_like(self._logs[kind])
        return self._of_kind[kind]

    def _expected_of(self, mean_s: float, count: int) -> Expected:
        """Of a configuration of which ``count`` cells have ended."""
        spread_s = mean_s * self._cv
        return Expected(mean_s, spread_s, spread_s / math.sqrt(count))

    def _expected_like(self, logs: Sequence[float]) -> Expected:
        """Of a configuration nobody has measured; ``logs`` of the mean seconds of its like."""
        typical = math.exp(statistics.fmean(logs))
        sigma = statistics.stdev(logs) if len(logs) > 1 else _UNLIKE_SIGMA
        return Expected(typical, typical * self._cv, typical * math.expm1(sigma))

    def seconds_of(self, cell: PlannedCell) -> float | None:
        """How long a cell will take that has not started; None while nothing tells."""
        expected = self.of(cell.config_id, cell.workload)
        return None if expected is None else expected.seconds

    def left_of(self, cell: Remaining) -> Expected | None:
        """What is left of a cell that runs, or all of one that does not."""
        expected = self.of(cell.config_id, cell.workload, cell.width)
        if cell.elapsed_s is None:
            return expected
        if cell.steps_left_s is None:
            return None if expected is None else self._left_of_starting(cell, expected)
        by_steps = cell.steps_left_s + (_typical(self._end_s, cell) or 0.0)
        if expected is None:
            return Expected(by_steps, by_steps * self._cv, 0.0)
        by_cells = max(expected.seconds - cell.elapsed_s, 0.0)
        if cell.config_id in self._of_config:
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
        start_s = _typical(self._start_s, cell)
        if start_s is None:
            return rest
        training_s = max(expected.seconds - start_s, 0.0)
        # A start that is late may as well be late by as much again.
        seconds = max(rest.seconds, abs(start_s - cell.elapsed_s) + training_s)
        if cell.config_id not in self._of_config:
            seconds = max(seconds, start_s)
        return Expected(seconds, rest.spread_s, rest.error_s)


def _medians(
    measured: Sequence[Measured], part: Callable[[Measured], float | None]
) -> dict[_Kind, float]:
    """Of a part of the time of all cells that tell it, by workload and devices, and by workload."""
    found: dict[_Kind, list[float]] = {}
    for one in measured:
        seconds = part(one)
        if seconds is not None:
            for kind in {(one.workload, one.width), (one.workload, None)}:
                found.setdefault(kind, []).append(seconds)
    return {kind: statistics.median(parts) for kind, parts in found.items()}


def _typical(medians: Mapping[_Kind, float], cell: Remaining) -> float | None:
    """The median of cells like this one; None where there are none."""
    return medians.get((cell.workload, cell.width), medians.get((cell.workload, None)))


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


def _pooled_cv(groups: Sequence[tuple[float, Sequence[float]]]) -> float:
    """Coefficient of variation of repeats, pooled over configurations measured twice or more.

    Few repeats say little about their own spread: the assumed one counts as two of them.

    Args:
        groups: the mean of each configuration's cells, and the seconds of each of them.
    """
    repeated = [(mean, group) for mean, group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for _, group in repeated)
    squares = sum((seconds / mean - 1) ** 2 for mean, group in repeated for seconds in group)
    return math.sqrt((squares + 2 * _UNKNOWN_CV**2) / (freedom + 2))
