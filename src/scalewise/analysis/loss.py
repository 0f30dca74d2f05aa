"""The loss of a run over the samples it has seen: speed means nothing without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scalewise.analysis.throughput import NotMeasuredError
from scalewise.records import MetricRow

_PREFERRED = ("val_loss", "train_loss", "loss")


@dataclass(frozen=True)
class LossCurve:
    """A loss over samples fed by all ranks together."""

    name: str
    samples: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def final(self) -> float:
        return self.values[-1]

    def at(self, samples: int) -> float | None:
        """The last loss recorded at or before ``samples``; None if there is none."""
        reached = [v for s, v in zip(self.samples, self.values, strict=True) if s <= samples]
        return reached[-1] if reached else None


def loss_curve(rows: Sequence[MetricRow], name: str | None = None) -> LossCurve:
    """The curve ``name``, or the first there is of val_loss, train_loss, any other loss.

    Raises :class:`NotMeasuredError` where no loss was recorded or none was finite.
    """
    recorded = dict.fromkeys(key for row in rows for key in row.values)
    candidates = [n for n in _PREFERRED if n in recorded]
    candidates += [key for key in recorded if "loss" in key and key not in candidates]
    wanted = [name] if name else candidates
    for candidate in wanted:
        points = [
            (row.samples, value) for row in rows if (value := row.values.get(candidate)) is not None
        ]
        if points:
            samples, values = zip(*points, strict=True)
            return LossCurve(candidate, samples, values)
    if candidates and not name:
        raise NotMeasuredError(f"{candidates[0]} was never a finite number: training diverged")
    raise NotMeasuredError(f"no {name or 'loss'} was recorded")


def longest_loss_curve(rows: Sequence[MetricRow]) -> LossCurve:
    """The loss with the most points, for a picture: validation may have been scored only once.

    Raises :class:`NotMeasuredError` like :func:`loss_curve`.
    """
    names = dict.fromkeys(key for row in rows for key in row.values if "loss" in key)
    found: list[LossCurve] = []
    for name in names:
        try:
            found.append(loss_curve(rows, name))
        except NotMeasuredError:
            continue  # never finite: another one may be
    if not found:
        return loss_curve(rows)
    return max(found, key=lambda curve: len(curve.samples))
