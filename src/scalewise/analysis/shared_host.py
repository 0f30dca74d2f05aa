"""Repeats that had neighbours on the host while others had it alone: set aside, one by one.

Co-tenancy is part of what a result depends on, so times with it and without it are not mixed. A
neighbour that comes and goes spoils the repeats it met, and no others.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

from scalewise.analysis.cells import Cell
from scalewise.analysis.identity import identity
from scalewise.analysis.parted import ENOUGH_RUNS, Aside, Parted

_OF_ONE_SIDE = ("devices", "strategy", "co_tenancy", "host")
"""Fields in which the sides of a comparison may differ, the one that is judged here, and the one
that repeats of a side may differ in."""


def part(groups: Mapping[str, Sequence[Cell]]) -> dict[str, Parted]:
    """The finished cells of every configuration, by its id, those set aside told apart.

    Configurations that would be compared with one another keep repeats of one kind: those that
    had the host alone, unless more of the configurations have enough that shared it. Where all
    repeats of a configuration are alike, all are kept.
    """
    done = {key: [c for c in cells if c.result is not None] for key, cells in groups.items()}
    mixed = {key for key, cells in done.items() if len({_shared(c) for c in cells}) > 1}
    found = {key: Parted(tuple(cells), {}) for key, cells in done.items()}
    for keys in _compared(done) if mixed else ():
        if mixed.isdisjoint(keys):
            continue
        shared = _votes(keys, done, shared=True) > _votes(keys, done, shared=False)
        for key in mixed.intersection(keys):
            found[key] = _parted(done[key], shared)
    return found


def _compared(done: Mapping[str, Sequence[Cell]]) -> Iterable[list[str]]:
    """Ids of configurations that differ in nothing but devices, strategy and co-tenancy."""
    groups: dict[Hashable, list[str]] = {}
    for key, cells in done.items():
        if cells:
            fields = identity(cells[:1]).items()
            own = frozenset((n, v) for n, v in fields if n.partition(".")[0] not in _OF_ONE_SIDE)
            groups.setdefault(own, []).append(key)
    return groups.values()


def _votes(keys: Sequence[str], done: Mapping[str, Sequence[Cell]], *, shared: bool) -> int:
    """Configurations that have enough repeats of this kind."""
    each = [(sum(_shared(c) is shared for c in done[key]), len(done[key])) for key in keys]
    return sum(of_kind >= min(ENOUGH_RUNS, runs) for of_kind, runs in each)


def _parted(cells: Sequence[Cell], shared: bool) -> Parted:
    kept = tuple(c for c in cells if _shared(c) is shared)
    others = [c for c in cells if _shared(c) is not shared]
    return Parted(kept, {c.planned.name: Aside(_reason(c), "on a quiet host") for c in others})


def _reason(cell: Cell) -> str:
    tenants = cell.result.co_tenants if cell.result else ()
    if not tenants:
        return "had the host alone, unlike the repeats that are compared"
    more = f" and {len(tenants) - 2} more" if len(tenants) > 2 else ""
    return f"shared the host with {', '.join(tenants[:2])}{more}"


def _shared(cell: Cell) -> bool:
    return bool(cell.result and cell.result.co_tenants)
