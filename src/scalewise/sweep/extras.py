"""What the launcher's options and ``sweep.doctor`` add to the cells that were asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalewise.sweep.plan import Request


def wrapped(plain: Mapping[str, Any], wrap: str | None) -> dict[str, Any]:
    """``plain`` with ``hydra.launcher.wrap`` in it: the cell's own processes read it there."""
    kept = dict(plain)
    if wrap:
        kept["sweep"] = {**kept.get("sweep", {}), "wrap": str(wrap)}
    return kept


def examination(
    requests: Sequence[Request], make: Callable[[Sequence[str], dict[str, Any]], Request]
) -> Request | None:
    """The doctor's cell for a sweep with ``sweep.doctor``, as wide as its widest cell.

    None where nobody asked for it, or where a cell of the sweep is one already. ``make`` builds a
    request from overrides and a plain configuration.
    """
    asked = [one for one in requests if one.cell.sweep.doctor]
    if not asked or any(one.cell.workload == "doctor" for one in requests):
        return None
    widest = max(asked, key=_width)
    plain = {**widest.plain, "workload": "doctor", "repeats": 1, "scaling": "weak"}
    plain["tracking"] = {**plain["tracking"], "name": "none", "trackers": []}
    # It trains nothing, so it must not be a cell of its own for every model of the sweep.
    plain.pop("profile", None)
    return make((*widest.overrides, "workload=doctor"), plain)


def _width(one: Request) -> float:
    devices = one.cell.strategy.devices
    return math.inf if devices == "auto" else devices
