"""Metrics over steps, one figure of what several ranks recorded, and the spread over ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

import numpy as np
from pydantic import NonNegativeInt

from scalewise.records.files import LineParser, LineWriter, UnixTime, finite_or_none, parse_series
from scalewise.records.model import RankSummary
from scalewise.records.validation import build

Grade = Literal["excellent", "good", "fair", "poor"]


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


def advice(graded: Grade, slowest_rank: int) -> str:
    """Advice about a grade, in one line."""
    return {
        "excellent": "nothing to do",
        "good": "nothing to do; watch it over longer runs",
        "fair": f"compare rank {slowest_rank}'s loader, cores and clock with the other ranks'",
        "poor": f"rank {slowest_rank} holds the others back: check its loader, cores and clock, "
        "and uneven sequence lengths",
    }[graded]


@dataclass(frozen=True)
class MetricRow:
    """Metrics at one step."""

    time: UnixTime
    step: NonNegativeInt
    """Optimizer steps done."""
    epoch: NonNegativeInt
    samples: NonNegativeInt
    """Samples fed so far by all ranks together."""
    values: Mapping[str, float | None]
    """E.g. ``train_loss``, ``learning_rate``, ``val_accuracy``; None is "not a finite number"."""
    step_samples: int | None = None
    """Samples this rank fed in the step whose loss this is. None: a row of no one step (a
    validation, an epoch), batches that could not be counted."""


class MetricsWriter(LineWriter):
    """Appends :class:`MetricRow` lines."""

    rows = 0

    def append(self, row: MetricRow) -> None:
        self.write({**vars(row), "values": {k: finite_or_none(v) for k, v in row.values.items()}})
        self.rows += 1


def read_metrics(path: Path) -> list[MetricRow]:
    """All whole rows of a metrics file. Raises :class:`RecordError`."""
    return parse_series(path, LineParser(partial(build, MetricRow)))


RowKey = tuple[int, int]
"""Step, and how many rows of that step came before."""
BACKWARD_LOSS: Final = "backward_loss"
"""What a script calls ``backward`` on. It may be scaled by anything, by the number of ranks too, so
it tells whether training diverged, and is compared with nothing."""
_OF_OWN_SAMPLES = frozenset({"train_loss", BACKWARD_LOSS})
"""Metrics that each rank records of its own samples alone, also in rows that do not count them."""


def key_after(last: RowKey | None, row: MetricRow) -> RowKey:
    """The key by which the next row of a rank finds those of the others; ``last`` was before."""
    return row.step, last[1] + 1 if last is not None and last[0] == row.step else 0


def keyed(rows: Iterable[MetricRow]) -> Iterator[tuple[RowKey, MetricRow]]:
    """The rows of one rank in order, each with its key."""
    key = None
    for row in rows:
        key = key_after(key, row)
        yield key, row


def weights_of(name: str, rows: Sequence[MetricRow]) -> tuple[float, ...] | None:
    """By how much the metric ``name`` of each of ``rows``, one a rank, counts in their mean.

    By the samples of the step. A metric of no one step (a validation score that a user's module
    does not reduce over the ranks) counts alike, as in Lightning's own ``sync_dist``. None where
    samples decide and were not counted.
    """
    known = tuple(float(row.step_samples) for row in rows if row.step_samples is not None)
    if len(known) == len(rows):
        return known
    return None if name in _OF_OWN_SAMPLES else (1.0,) * len(rows)


def mean_over_ranks(
    values: Sequence[float | None], weights: Sequence[float] | None
) -> float | None:
    """The mean of one metric over ranks, weighted; None if any rank's is, which is not finite.

    Values that agree (ranks that hold one replica together, scores that were reduced over the
    ranks) stay what they are to the last bit, and need no ``weights``.

    Raises ValueError for values that differ without a weight above 0.
    """
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    if len(set(known)) == 1:
        return known[0]
    if weights is None or sum(weights) <= 0:
        raise ValueError(f"weights: found {weights} for values that differ; give one a value")
    return sum(value * weight for value, weight in zip(known, weights, strict=True)) / sum(weights)


def last_metrics(ranks: Sequence[RankSummary]) -> dict[str, float | None]:
    """The last value of each metric, over all ranks that have one.

    A loss that each rank has of its own samples is weighted by those of the whole run: they are in
    the proportion of a step's, but for a short last batch of an epoch.
    """
    found: dict[str, float | None] = {}
    for name in dict.fromkeys(name for one in ranks for name in one.metrics):
        having = [one for one in ranks if name in one.metrics]
        fed = tuple(float(one.samples_fed) for one in having)
        weights = fed if name in _OF_OWN_SAMPLES and sum(fed) > 0 else (1.0,) * len(having)
        found[name] = mean_over_ranks([one.metrics[name] for one in having], weights)
    return found
