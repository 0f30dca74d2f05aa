"""The plan of a sweep's folder, as it grows."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from scalewise.records import SweepFolder, SweepPlan
from scalewise.sweep.plan import Cell


def add_to_plan(folder: SweepFolder, cells: Sequence[Cell], policy: str, slots: int | None) -> None:
    """Add the cells to the folder's plan; those it already has keep their place.

    Args:
        slots: devices of the host that runs the cells; None where that is not one host.
    """
    planned = {c.planned.cell_id: c.planned for c in cells}
    earlier = folder.load_plan() if folder.plan_path.exists() else None
    before = earlier.cells if earlier is not None else ()
    known = {p.cell_id for p in before}
    new = tuple(p for i, p in planned.items() if i not in known)
    seed = cells[0].request.cell.sweep.order_seed if cells else 0
    created_at = time.time() if earlier is None else earlier.created_at
    if slots is None and earlier is not None:
        slots = earlier.slots
    folder.save_plan(SweepPlan(created_at, tuple(sys.argv), seed, (*before, *new), policy, slots))
