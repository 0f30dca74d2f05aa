"""Metrics over steps, in JSON lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import NonNegativeInt

from scalewise.records.files import RecordError, UnixTime
from scalewise.records.lines import Lines, finite_or_none, whole_lines
from scalewise.validation import DataError, build, to_plain


@dataclass(frozen=True)
class MetricRow:
    """Metrics at one step."""

    time: UnixTime
    """Unix time."""
    step: NonNegativeInt
    """Optimizer steps done."""
    epoch: NonNegativeInt
    samples: NonNegativeInt
    """Samples fed so far by all ranks together."""
    values: Mapping[str, float | None]
    """E.g. ``train_loss``, ``learning_rate``, ``val_accuracy``; None is "not a finite number"."""
    step_samples: int | None = None
    """Samples this rank fed in the step whose loss this is. None: a row of no one step (a
    validation, an epoch), batches that could not be counted, records older than this field."""


class MetricsWriter:
    """Appends :class:`MetricRow` lines, to a copy of ``earlier`` ones where a try goes on."""

    def __init__(self, path: Path, earlier: Path | None = None) -> None:
        self.path = path
        self._lines = Lines(path)
        if earlier is not None and earlier.exists():
            for line in earlier.read_text(encoding="utf-8").splitlines():
                self._lines.write(json.loads(line))
                self._lines.rows += 1

    @property
    def rows(self) -> int:
        return self._lines.rows

    def append(self, row: MetricRow) -> None:
        values = {k: finite_or_none(v) for k, v in row.values.items()}
        self._lines.write({**to_plain(row), "values": values})
        self._lines.rows += 1

    def close(self) -> None:
        self._lines.close()


def read_metrics(path: Path) -> list[MetricRow]:
    """All whole rows of a metrics file."""
    rows = []
    for number, plain in whole_lines(path, []):
        try:
            rows.append(build(MetricRow, plain))
        except DataError as error:
            raise RecordError(f"{path}, line {number}: {error}") from error
    return rows
