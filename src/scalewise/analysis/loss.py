"""The loss of a run over the samples it has seen: speed means nothing without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scalewise.analysis.throughput import NotMeasuredError
from scalewise.records import MetricRow

_PREFERRED = ("val_loss", "train_loss", "loss")


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
        """The last loss recorded at or before ``samples``; None if there is none."""
        reached = [v for s, v in zip(self.samples, self.values, strict=True) if s <= samples]
        return reached[-1] if reached else None


def loss_curve(
    rows: Sequence[MetricRow], name: str | None = None, said: Mapping[str, str] | None = None
) -> LossCurve:
    """The curve ``name``, or the first there is of val_loss, train_loss, any other loss.

    ``rows`` and ``said``, what losses are called, as :mod:`scalewise.analysis.run_losses` has them.

    Raises :class:`NotMeasuredError` where no loss was recorded or the last one was not finite:
    what a diverged run had reached before is not what it reached.
    """
    recorded = dict.fromkeys(key for row in rows for key in row.values)
    candidates = [n for n in _PREFERRED if n in recorded]
    candidates += [key for key in recorded if "loss" in key and key not in candidates]
    wanted = [name] if name else candidates
    for candidate in wanted:
        recorded_rows = [row for row in rows if candidate in row.values]
        if recorded_rows and recorded_rows[-1].values[candidate] is None:
            raise NotMeasuredError(_not_finite_since(candidate, recorded_rows))
        points = [
            (row.samples, value)
            for row in recorded_rows
            if (value := row.values[candidate]) is not None
        ]
        if points:
            samples, values = zip(*points, strict=True)
            return LossCurve(candidate, (said or {}).get(candidate, candidate), samples, values)
    raise NotMeasuredError(f"no {name or 'loss'} was recorded")


def divergence(rows: Sequence[MetricRow]) -> str | None:
    """Which recorded loss ended not finite, and since when; None where all ended finite.

    Beside the loss that is trained or validated on, another metric with "loss" in its name may be
    not finite without harm: the best one so far, or a term that a batch has no samples for.
    """
    names = dict.fromkeys(key for row in rows for key in row.values if "loss" in key)
    for name in [n for n in _PREFERRED if n in names] or names:
        own = [row for row in rows if name in row.values]
        if own[-1].values[name] is None:
            return _not_finite_since(name, own)
    return None


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
    names = dict.fromkeys(key for row in rows for key in row.values if "loss" in key)
    found: list[LossCurve] = []
    for name in names:
        try:
            found.append(loss_curve(rows, name, said))
        except NotMeasuredError:
            continue  # never finite: another one may be
    if not found:
        return loss_curve(rows, said=said)
    return max(found, key=lambda curve: len(curve.samples))
