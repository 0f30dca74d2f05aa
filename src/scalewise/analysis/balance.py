"""Load balance across ranks: who arrives last at the all-reduce, and by how much.

Balance is judged by *arrival*, the time from the start of a step until the last gradient bucket
is ready. Nothing else shows a straggler: synchronous data parallelism makes every rank's step
equally long, and a rank that waits reads 100 % utilisation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from scalewise.analysis.throughput import NotMeasuredError, common_steps, timeline
from scalewise.records import StepSeries

Grade = Literal["excellent", "good", "fair", "poor"]

_WINDOWS = 20
_MIN_WINDOW_STEPS = 10
"""A window of fewer steps shows their noise."""

_MEMORY_SAYS_NOTHING = (
    "Memory balance says nothing about load under DDP: every replica holds the same parameters, "
    "gradients and optimizer state, so memory is equal even while one rank keeps the others "
    "waiting. "
)


def what_says_nothing(*, on_cpu: bool) -> str:
    """Why the CVs beside that of arrival do not judge load."""
    if on_cpu:
        return _MEMORY_SAYS_NOTHING + (
            "Nor does CPU time: it is lower wherever a rank waits, be it for another rank, for "
            "its loader or for a core."
        )
    return _MEMORY_SAYS_NOTHING + (
        "Utilisation does not show it either: a rank that waits in a collective reads 100 %."
    )


@dataclass(frozen=True)
class BalanceWindow:
    """Balance of some steps in a row."""

    first_step: int
    last_step: int
    cv_percent: float
    slowest_rank: int


@dataclass(frozen=True)
class LoadBalance:
    """Arrival of all ranks of one run."""

    cv_percent: float
    """Coefficient of variation of the ranks' mean arrival."""
    grade: Grade
    arrival_ms: tuple[float, ...]
    """Mean over the timed steps, one value a rank."""
    slowest_rank: int
    behind_ms: float
    """How much later the slowest rank arrives than the mean of the others."""
    timeline: str
    slowest_share: float
    """Share of the timed steps in which that rank arrived last."""
    behind_share: float | None
    """``behind_ms`` over the mean step time: what the others spend waiting for it."""
    history: tuple[BalanceWindow, ...]
    """The run cut into at most 20 windows of equally many steps, ten at least."""

    @property
    def explanation(self) -> str:
        others = self.arrival_ms[self.slowest_rank] - self.behind_ms
        return (
            f"arrival CV {cv_text(self.cv_percent)} % ({self.grade}): rank {self.slowest_rank} is "
            f"ready {self.behind_ms:.2f} ms after the mean of the others, which take "
            f"{others:.2f} ms, and last in {self.slowest_share:.0%} of the steps"
        )


def cv_percent(values: Sequence[float]) -> float:
    """Coefficient of variation in percent: ``100 sd / mean``.

    The ranks are all there are, not a sample of more: the population's standard deviation
    (divided by n). Raises ValueError where the mean is not positive.
    """
    numbers = np.asarray(values, dtype=np.float64)
    mean = float(numbers.mean())
    if not mean > 0:
        raise ValueError(f"a CV needs a positive mean; found {mean}")
    return 100 * float(numbers.std()) / mean


GRADES: Final[Mapping[Grade, float]] = {
    "excellent": 5.0,
    "good": 10.0,
    "fair": 20.0,
    "poor": math.inf,
}
"""The earlier GPU monitor's four grades, each with the CV in percent that it lies below.

A grade is of the CV that it stands beside: a run's of the run's, a configuration's of the mean of
its runs (the worst of many runs would be worse than that of few)."""


def grade(cv: float) -> Grade:
    """The earlier GPU monitor's grade of a CV in percent."""
    return next(name for name, below in GRADES.items() if cv < below)


def cv_text(cv: float) -> str:
    """A CV in percent to a tenth; with more digits where the tenth has another grade."""
    if 0 < cv < 0.05:
        return "<0.1"
    written = (f"{cv:.{digits}f}" for digits in range(1, 16))
    return next((text for text in written if grade(float(text)) == grade(cv)), f"{cv:.1f}")


def measure_balance(series: Sequence[StepSeries], world_size: int) -> LoadBalance:
    """Load balance of one run.

    Raises :class:`NotMeasuredError` for one rank, or where the last bucket was not timed.
    """
    if world_size < 2:
        raise NotMeasuredError("one rank: there is nothing to balance")
    ranks = common_steps(series, world_size)
    line = timeline(ranks)
    arrivals = np.stack([one.column("arrival", line) for one in ranks])
    known = ~np.isnan(arrivals).any(axis=0)
    arrivals, numbers = arrivals[:, known], ranks[0].rows["step"][known]
    if arrivals.shape[1] == 0:
        raise NotMeasuredError("arrival was not timed: no gradient bucket reported ready")
    means = arrivals.mean(axis=1)
    if not float(means.mean()) > 0:
        raise NotMeasuredError("every arrival is zero: the step clock did not run")
    slowest = int(np.argmax(means))
    others = np.delete(arrivals, slowest, axis=0)
    behind = float(means[slowest] - others.mean())
    cv = cv_percent(means.tolist())
    step_ms = float(np.nanmean(np.stack([one.column("step", line) for one in ranks])))
    return LoadBalance(
        cv_percent=cv,
        grade=grade(cv),
        arrival_ms=tuple(means.tolist()),
        slowest_rank=slowest,
        behind_ms=behind,
        timeline=line,
        slowest_share=float(np.mean(arrivals[slowest] > others.max(axis=0))),
        behind_share=behind / step_ms if step_ms > 0 else None,
        history=_history(arrivals, numbers),
    )


def _history(
    arrivals: npt.NDArray[np.float64], steps: npt.NDArray[np.int64]
) -> tuple[BalanceWindow, ...]:
    """``arrivals`` has shape ``[ranks, steps]``; a window of a stopped clock is left out."""
    found = []
    windows = min(_WINDOWS, max(1, len(steps) // _MIN_WINDOW_STEPS))
    for columns in np.array_split(np.arange(len(steps)), windows):
        means = arrivals[:, columns].mean(axis=1)
        if float(means.mean()) > 0:
            first, last = int(steps[columns[0]]), int(steps[columns[-1]])
            cv, slowest = cv_percent(means.tolist()), int(np.argmax(means))
            found.append(BalanceWindow(first, last, cv, slowest))
    return tuple(found)


def advice(graded: Grade, slowest_rank: int, *, on_cpu: bool) -> str:
    """What to do about a grade, in one line."""
    compare = "waiting for cores" if on_cpu else "clocks and throttle reasons"
    check = "what else its cores run" if on_cpu else "its device's clocks and throttling"
    return {
        "excellent": "nothing to do",
        "good": "nothing to do; watch it over longer runs",
        "fair": f"compare rank {slowest_rank}'s data wait and {compare} with the other ranks'",
        "poor": f"rank {slowest_rank} holds the others back: check {check}, its loader, and "
        "uneven sequence lengths",
    }[graded]
