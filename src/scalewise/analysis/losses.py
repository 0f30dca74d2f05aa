"""The losses of a run, and what else was logged, from what its ranks recorded.

Under data parallelism every rank has the loss of its part of a batch. The loss of the step is
their mean, weighted by the samples each rank fed. Of ranks that hold one replica together, as
stages of a pipeline, one speaks for all.

``self.log("val/acc", ...)`` is the figure ``val/acc``, and ``best val/acc`` where the name tells
which value is the better one. A name that a figure has already is told as ``logged/NAME``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scalewise.analysis.labels import named
from scalewise.analysis.model import CellRecords, setting
from scalewise.analysis.steps import NotMeasuredError
from scalewise.config import Mode, known_mode
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
class LossCurve:
    """A loss over samples fed by all ranks together."""

    metric: str
    """Its name in the records."""
    name: str
    """What it is called: the metric, and whose where that is not one model's over all ranks."""
    samples: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def final(self) -> float:
        return self.values[-1]

    def at(self, samples: int) -> float | None:
        """The loss logged at ``samples``, linear between logged ones; None beyond their ends."""
        if not self.samples[0] <= samples <= self.samples[-1]:
            return None
        return float(np.interp(samples, self.samples, self.values))

    def lately(self, samples: int) -> float | None:
        """The mean logged in the last fifth before ``samples``; None beyond their ends."""
        at = self.at(samples)
        fed, values = np.array(self.samples), np.array(self.values)
        late = values[(fed > 0.8 * samples) & (fed <= samples)]
        return at if at is None or not len(late) else float(late.mean())


def equal_samples(curves: Sequence[LossCurve]) -> int:
    """At which number of samples losses of unlike lengths and steps are compared.

    The largest at which every curve has a logged loss: between logged ones a falling loss lies
    below the line. Where there is none in the second half, the last of the shortest curve.
    """
    last = min(curve.samples[-1] for curve in curves)
    logged = set.intersection(*(set(curve.samples) for curve in curves))
    common = max((samples for samples in logged if samples <= last), default=0)
    return common if 2 * common >= last else last


def loss_curve(
    rows: Sequence[MetricRow], name: str | None = None, said: Mapping[str, str] | None = None
) -> LossCurve:
    """The curve ``name``, or the first there is of val_loss, train_loss, any other loss.

    ``rows`` and ``said``, what losses are called, are of :func:`run_losses`.

    Raises :class:`NotMeasuredError` where no loss was recorded or the last one was not finite:
    what a diverged run had reached before is not what it reached.
    """
    recorded = dict.fromkeys(key for row in rows for key in row.values)
    candidates = _by_preference(filter(_is_comparable, recorded))
    for candidate in [name] if name else candidates:
        recorded_rows = [row for row in rows if candidate in row.values]
        if recorded_rows and recorded_rows[-1].values[candidate] is None:
            raise NotMeasuredError(_not_finite_since(candidate, recorded_rows))
        points = [(row.samples, row.values[candidate]) for row in recorded_rows]
        known = [(at, value) for at, value in points if value is not None]
        if known:
            samples, values = zip(*known, strict=True)
            return LossCurve(candidate, (said or {}).get(candidate, candidate), samples, values)
    if BACKWARD_LOSS in recorded:
        raise NotMeasuredError("a script may scale what it calls backward on: it is no loss")
    raise NotMeasuredError(f"no {name or 'loss'} was recorded")


def divergence(rows: Sequence[MetricRow]) -> str | None:
    """Which recorded loss ended not finite, and since when; None where all ended finite.

    Beside the loss that is trained or validated on, another metric with "loss" in its name may be
    not finite without harm: the best one so far, or a term that a batch has no samples for.
    """
    names = _losses_in(rows)
    known = [n for n in _by_preference(names) if n in _PREFERRED or _VALIDATION.fullmatch(n)]
    # What a Trainer logs as its loss may be filtered; this is not.
    trained = [name for name in names if name == BACKWARD_LOSS]
    for name in (*(known or names), *trained):
        own = [row for row in rows if name in row.values]
        if own[-1].values[name] is None:
            return _not_finite_since(name, own)
    return None


def _by_preference(losses: Iterable[str]) -> list[str]:
    """The loss of validation first (``val/loss`` too), then that of training, then all others."""

    def place(name: str) -> float:
        if name in _PREFERRED:
            return _PREFERRED.index(name)
        return 0.5 if _VALIDATION.fullmatch(name) else len(_PREFERRED)

    return sorted(losses, key=place)


def _is_comparable(name: str) -> bool:
    return "loss" in name and name != BACKWARD_LOSS


def _losses_in(rows: Iterable[MetricRow]) -> dict[str, None]:
    return dict.fromkeys(key for row in rows for key in row.values if "loss" in key)


def _not_finite_since(name: str, rows: Sequence[MetricRow]) -> str:
    """Since when ``name``, not finite in the last of ``rows``, has not been."""
    since = rows[-1]
    for row in reversed(rows):
        if row.values[name] is not None:
            return f"{name} is not finite from step {since.step} on: training diverged"
        since = row
    return f"{name} was never a finite number: training diverged"


def longest_loss_curve(
    rows: Sequence[MetricRow], said: Mapping[str, str] | None = None
) -> LossCurve:
    """The loss with the most points, for a picture: validation may have been scored only once.

    Raises :class:`NotMeasuredError` like :func:`loss_curve`.
    """
    found: list[LossCurve] = []
    for name in filter(_is_comparable, _losses_in(rows)):
        try:
            found.append(loss_curve(rows, name, said))
        except NotMeasuredError:
            continue  # never finite: another one may be
    if not found:
        return loss_curve(rows, said=said)
    return max(found, key=lambda curve: len(curve.samples))


def run_losses(cell: CellRecords, result: CellResult) -> tuple[list[MetricRow], dict[str, str]]:
    """The losses of a finished cell, one a row, those of one in the order of their steps.

    Beside them what a loss is called that is not of one model over the samples of all ranks.
    """
    rows: list[MetricRow] = []
    said: dict[str, str] = {}
    for name in _losses_in(row for _, rows in sorted(cell.metrics.items()) for row in rows):
        found, called = over_ranks(name, cell, result)
        rows += found
        said |= {name: called} if called != name else {}
    return rows, said


def over_ranks(name: str, cell: CellRecords, result: CellResult) -> tuple[Sequence[MetricRow], str]:
    """The rows of one metric that some rank has, over all ranks, and what to call it."""
    ranks = sorted(result.ranks, key=lambda one: one.rank)
    part_of = dict(zip((one.rank for one in ranks), data_shards_of(ranks), strict=True))
    having = {
        rank: own
        for rank, rows in sorted(cell.metrics.items())
        if (own := [row for row in rows if name in row.values])
    }
    speakers: dict[int, int] = {}
    for rank in having:
        speakers.setdefault(part_of.get(rank, rank), rank)
    matched = _matched([having[rank] for rank in speakers.values()])
    if set(part_of.values()) - set(speakers) or not matched:
        first = min(having)
        return having[first], f"{name} of rank {first}"
    fed = {one.rank: float(one.samples_fed) for one in ranks}
    fallback = tuple(fed.get(rank, 0.0) for rank in speakers.values())
    rows = [_mean(name, alike, fallback) for alike in matched]
    if result.models > 1:
        return rows, _of_models(name, cell, result.models)
    # Between two exchanges, ranks of local SGD have parameters of their own.
    kind = setting(cell.config, "strategy.kind") or named(cell.config or {}, "strategy")
    if kind == "local_sgd" and any(len({r.values[name] for r in one}) > 1 for one in matched):
        return rows, f"mean {name} of {len(speakers)} replicas"
    return rows, name


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
    scored_last = (cell.config or {}).get("validation") == "end"
    if scored_last and name.startswith("val"):
        return f"{name} of the first of {models} models"
    return f"mean {name} of {models} models"


OWN: Final = frozenset({"train_loss", "learning_rate"})
"""Series of the recorder's, which no module logged."""
BEST: Final = "best "
"""Before the name of a metric, its best value of a run."""


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
        if mode is not None and (best := _best(cell, name, mode)) is not None:
            found[f"{BEST}{key}"] = best
    return found


def logged_curves(cell: CellRecords) -> dict[str, tuple[list[int], list[float]]]:
    """Steps and values of each metric of a finished cell that was logged more than once.

    A learning rate that stayed is left out.
    """
    names = last_metrics(cell.result.ranks) if cell.result and not cell.metric_faults else ()
    found = {}
    for name in names:
        rows = [] if name == "train_loss" else _rows(cell, name)
        known = [(row.step, value) for row in rows if (value := row.values[name]) is not None]
        stayed = name == "learning_rate" and len({value for _, value in known}) == 1
        if len(known) > 1 and not stayed:
            found[name] = ([step for step, _ in known], [value for _, value in known])
    return found


def _rows(cell: CellRecords, name: str) -> Sequence[MetricRow]:
    """Of a metric over all ranks; none where the series is not there."""
    assert cell.result is not None
    if not any(name in row.values for rows in cell.metrics.values() for row in rows):
        return ()
    return over_ranks(name, cell, cell.result)[0]


def _best(cell: CellRecords, name: str, mode: Mode) -> float | None:
    """Over all epochs; None where none is finite, and where there is one value alone."""
    rows = _rows(cell, name)
    known = [value for row in rows if (value := row.values[name]) is not None]
    return (max if mode == "max" else min)(known) if known and len(rows) > 1 else None
