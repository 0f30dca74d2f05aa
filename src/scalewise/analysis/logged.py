"""What a module logged, under its own names: the last and the best value of each metric of a run.

``self.log("val/acc", ...)`` is the figure ``val/acc``, and ``best val/acc`` where the name tells
which value is the better one. A name that a figure has already is told as ``logged/NAME``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from scalewise.analysis.losses import over_ranks
from scalewise.analysis.model import CellRecords, workload
from scalewise.config import Mode, known_mode
from scalewise.records import MetricRow, last_metrics

OWN: Final = frozenset({"train_loss", "learning_rate"})
"""Series of the recorder's, which no module logged."""
BEST: Final = "best "
"""Before the name of a metric, its best value of a run."""


def logged_figures(
    cell: CellRecords, taken: Collection[str], missing: dict[str, str]
) -> dict[str, float | None]:
    """The last and the best value of each metric of a cell that trained, by the figure's key.

    Args:
        taken: keys of other figures.
        missing: takes the reason of a value that is not there.
    """
    result = cell.result
    if result is None or cell.metric_faults or workload(cell.config) != "train":
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
