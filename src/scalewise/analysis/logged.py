"""What a module logged, under its own names: the last and the best value of each metric of a run.

``self.log("val/acc", ...)`` is the figure ``val/acc``, and ``best val/acc`` where the name tells
which value is the better one. A name that a figure has already is told as ``logged/NAME``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from scalewise.analysis.losses import over_ranks
from scalewise.analysis.model import CellRecords, workload
from scalewise.config import Mode, known_mode
from scalewise.records import last_metrics

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


def _best(cell: CellRecords, name: str, mode: Mode) -> float | None:
    """Over all epochs; None where the series is not there, and where none is finite."""
    assert cell.result is not None
    if not any(name in row.values for rows in cell.metrics.values() for row in rows):
        return None
    rows, _ = over_ranks(name, cell, cell.result)
    known = [value for row in rows if (value := row.values[name]) is not None]
    return (max if mode == "max" else min)(known) if known else None
