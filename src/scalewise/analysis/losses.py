"""The losses of a run, and what else was logged, from what its ranks recorded.

Under data parallelism every rank has the loss of its part of a batch. The loss of the step is
their mean, weighted by the samples each rank fed. Of ranks that hold one replica together, as
stages of a pipeline, one speaks for all.

``self.log("val/acc", ...)`` is the figure ``val/acc``, and ``best val/acc`` where the name tells
which value is the better one. A name that a figure has already is told as ``logged/NAME``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from scalewise.analysis.labels import named
from scalewise.analysis.model import CellRecords, setting
from scalewise.analysis.steps import NotMeasuredError
from scalewise.config import known_mode
from scalewise.records import (
    BACKWARD_LOSS,
    CellResult,
    MetricRow,
    data_shards_of,
    keyed,
    last_metrics,
    mean_over_ranks,
    weights_of,
)

_PREFERRED = ("val_loss", "train_loss", "loss")
_VALIDATION = re.compile(r"val(id(ation)?)?[^A-Za-z0-9]loss")
"""What modules of a user's call it."""


@dataclass(frozen=True)
class MetricCurve:
    """A metric over samples fed by all ranks together."""

    metric: str
    """Its name in the records."""
    name: str
    """What it is called: the metric, and whose where that is not one model's over all ranks."""
    rows: Sequence[MetricRow]
    """In the order of their steps; each has the metric."""

    @cached_property
    def finite(self) -> list[tuple[MetricRow, float]]:
        """Its finite values, each with its row."""
        return [(row, v) for row in self.rows if (v := row.values[self.metric]) is not None]

    @cached_property
    def samples(self) -> tuple[int, ...]:
        return tuple(row.samples for row, _ in self.finite)

    @cached_property
    def values(self) -> tuple[float, ...]:
        return tuple(value for _, value in self.finite)

    @property
    def final(self) -> float:
        return self.values[-1]

    @property
    def diverged(self) -> str | None:
        """Since when it has not been finite, in words; None where it ended finite."""
        since: MetricRow | None = None
        for row in reversed(self.rows):
            if row.values[self.metric] is not None:
                if since is None:
                    return None
                return f"{self.metric} is not finite from step {since.step} on: training diverged"
            since = row
        return f"{self.metric} was never a finite number: training diverged"

    def at(self, samples: int) -> float | None:
        """The value logged at ``samples``, linear between logged ones; None beyond their ends."""
        if not self.samples[0] <= samples <= self.samples[-1]:
            return None
        return float(np.interp(samples, self.samples, self.values))

    def lately(self, samples: int) -> float | None:
        """The mean logged in the last fifth before ``samples``; None beyond their ends."""
        at = self.at(samples)
        fed, values = np.array(self.samples), np.array(self.values)
        late = values[(fed > 0.8 * samples) & (fed <= samples)]
        return at if at is None or not len(late) else float(late.mean())


def equal_samples(curves: Sequence[MetricCurve]) -> int:
    """At which number of samples losses of unlike lengths and steps are compared.

    The largest at which every curve has a logged loss: between logged ones a falling loss lies
    below the line. Where there is none in the second half, the last of the shortest curve.
    """
    last = min(curve.samples[-1] for curve in curves)
    logged = set.intersection(*(set(curve.samples) for curve in curves))
    common = max((samples for samples in logged if samples <= last), default=0)
    return common if 2 * common >= last else last


Losses = Mapping[str, MetricCurve]
"""The losses of a run by their names in the records."""


def loss_curve(losses: Losses) -> MetricCurve:
    """The first there is of val_loss, train_loss, any other loss.

    Raises :class:`NotMeasuredError` where no loss was recorded or the last one was not finite: what
    a diverged run had reached before is not what it reached.
    """
    comparable = _comparable(losses)
    if not comparable and BACKWARD_LOSS in losses:
        raise NotMeasuredError("a script may scale what it calls backward on: it is no loss")
    if not comparable:
        raise NotMeasuredError("no loss was recorded")
    if why := comparable[0].diverged:
        raise NotMeasuredError(why)
    return comparable[0]


def longest_loss_curve(losses: Losses) -> MetricCurve:
    """The loss with the most points, for a picture: validation may have been scored only once.

    Raises :class:`NotMeasuredError` like :func:`loss_curve`.
    """
    own = (one for name, one in losses.items() if name != BACKWARD_LOSS)
    found = [one for one in own if not one.diverged]
    return max(found, key=lambda curve: len(curve.samples)) if found else loss_curve(losses)


def divergence(losses: Losses) -> str | None:
    """Which recorded loss ended not finite, and since when; None where all ended finite.

    Beside the loss that is trained or validated on, another metric with "loss" in its name may be
    not finite without harm: the best one so far, or a term that a batch has no samples for.
    """
    known = [one for one in _comparable(losses) if _place(one.metric) < len(_PREFERRED)]
    # What a Trainer logs as its loss may be filtered; this is not.
    trained = [one for name, one in losses.items() if name == BACKWARD_LOSS]
    each = (one.diverged for one in (*(known or losses.values()), *trained))
    return next(filter(None, each), None)


def _comparable(losses: Losses) -> list[MetricCurve]:
    """The loss of validation first (``val/loss`` too), then that of training, then all others."""
    own = (one for name, one in losses.items() if name != BACKWARD_LOSS)
    return sorted(own, key=lambda one: _place(one.metric))


def _place(name: str) -> float:
    if name in _PREFERRED:
        return _PREFERRED.index(name)
    return 0.5 if _VALIDATION.fullmatch(name) else len(_PREFERRED)


def run_losses(cell: CellRecords, result: CellResult) -> Losses:
    """The losses of a finished cell."""
    rows = (row for _, rows in sorted(cell.metrics.items()) for row in rows)
    names = dict.fromkeys(key for row in rows for key in row.values if "loss" in key)
    return {name: over_ranks(name, cell, result) for name in names}


def over_ranks(name: str, cell: CellRecords, result: CellResult) -> MetricCurve:
    """One metric over all ranks; without rows where no rank has it."""
    ranks = sorted(result.ranks, key=lambda one: one.rank)
    part_of = dict(zip((one.rank for one in ranks), data_shards_of(ranks), strict=True))
    having = {
        rank: own
        for rank, rows in sorted(cell.metrics.items())
        if (own := [row for row in rows if name in row.values])
    }
    if not having:
        return MetricCurve(name, name, ())
    speakers: dict[int, int] = {}
    for rank in having:
        speakers.setdefault(part_of.get(rank, rank), rank)
    matched = _matched([having[rank] for rank in speakers.values()])
    if set(part_of.values()) - set(speakers) or not matched:
        first = min(having)
        return MetricCurve(name, f"{name} of rank {first}", having[first])
    fed = {one.rank: float(one.samples_fed) for one in ranks}
    fallback = tuple(fed.get(rank, 0.0) for rank in speakers.values())
    rows = [_mean(name, alike, fallback) for alike in matched]
    if result.models > 1:
        return MetricCurve(name, _of_models(name, cell, result.models), rows)
    # Between two exchanges, ranks of local SGD have parameters of their own.
    kind = setting(cell.config, "strategy.kind") or named(cell.config or {}, "strategy")
    if kind == "local_sgd" and any(len({r.values[name] for r in one}) > 1 for one in matched):
        return MetricCurve(name, f"mean {name} of {len(speakers)} replicas", rows)
    return MetricCurve(name, name, rows)


def _matched(ranks: Sequence[Sequence[MetricRow]]) -> list[list[MetricRow]]:
    """For each row that every rank has, those of all of them."""
    first, *others = (dict(keyed(rows)) for rows in ranks)
    return [
        [row, *(other[key] for other in others)]
        for key, row in first.items()
        if all(key in other for other in others)
    ]


def _mean(name: str, rows: Sequence[MetricRow], fed: Sequence[float]) -> MetricRow:
    """Rows that do not count their samples weigh as those of the whole run, ``fed``; else alike."""
    weights = weights_of(name, rows) or (fed if sum(fed) > 0 else (1.0,) * len(rows))
    return replace(rows[0], values={name: mean_over_ranks([r.values[name] for r in rows], weights)})


def _of_models(name: str, cell: CellRecords, models: int) -> str:
    """Lightning begins a validation after training by sending rank 0's parameters to all."""
    if (cell.config or {}).get("validation") == "end" and name.startswith("val"):
        return f"{name} of the first of {models} models"
    return f"mean {name} of {models} models"


OWN: Final = frozenset({"train_loss", "learning_rate"})
"""Series of the recorder's, which no module logged."""
BEST: Final = "best "
"""Before the name of a metric, its best value of a run."""


def is_compared(figure: str) -> bool:
    """Whether what one run logged may stand beside another's: a script may scale its losses."""
    return figure.removeprefix(BEST) != BACKWARD_LOSS


def logged_figures(
    cell: CellRecords, taken: Collection[str], missing: dict[str, str]
) -> dict[str, float | None]:
    """The last and the best value of each metric, by a key that is not ``taken`` by a figure."""
    result = cell.result
    if result is None or cell.metric_faults:
        return {}
    found: dict[str, float | None] = {}
    for name, last in last_metrics(result.ranks).items():
        if name in OWN:
            continue
        key = f"logged/{name}" if name in taken else name
        found[key] = last
        if last is None:
            missing[key] = "its last value is not a finite number"
        mode = None if "best" in name.lower() else known_mode(name)
        series = over_ranks(name, cell, result) if mode is not None else None
        if series and series.finite and len(series.rows) > 1:
            best = max if mode == "max" else min
            found[f"{BEST}{key}"] = best(value for _, value in series.finite)
    return found


def logged_curves(cell: CellRecords) -> dict[str, tuple[list[int], list[float]]]:
    """Steps and values of each metric of a finished cell that was logged more than once.

    A learning rate that stayed is left out.
    """
    result = cell.result
    if result is None or cell.metric_faults:
        return {}
    found = {}
    for name in last_metrics(result.ranks):
        if name == "train_loss":
            continue
        known = over_ranks(name, cell, result).finite
        stayed = name == "learning_rate" and len({value for _, value in known}) == 1
        if len(known) > 1 and not stayed:
            found[name] = ([row.step for row, _ in known], [value for _, value in known])
    return found
