"""Strong or weak scaling of scripts under the Monitor callback, which never say which they mean.

Lightning's batch is per process, so each such fit is recorded as weak scaling. A script that
divides its batch among its devices means the same global batch: strong scaling. Which of the two
a fit on several devices is shows beside those on one device, and on one device it is both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scalewise.analysis.cells import Cell
from scalewise.analysis.identity import Identity, differences, identity
from scalewise.analysis.kinds import is_monitored
from scalewise.analysis.runs import Configuration


def read_scaling(configs: Sequence[Configuration]) -> tuple[Configuration, ...]:
    """Monitored fits on several devices as the scaling in which fewest fields differ.

    Weak, as recorded, where both fit: with a single device of either batch.
    """
    singles = [c for c in configs if c.devices == 1 and c.runs and _monitored(c)]
    return tuple(_read(c, singles) if _monitored(c) and c.runs else c for c in configs)


def identity_beside(single: Configuration, multi: Configuration) -> Identity:
    """The identity of ``single`` to compare ``multi`` with."""
    if not _monitored(single) or "scaling" not in multi.identity:
        return single.identity
    return {**single.identity, "scaling": multi.identity["scaling"]}


def said_of(multi: Configuration) -> str:
    """Which scaling a monitored fit was read as; empty for one that was asked for it."""
    if not _monitored(multi):
        return ""
    if multi.identity.get("scaling") == "strong":
        return "strong scaling, equal global batches"
    return "weak scaling, equal batches a device"


def _read(config: Configuration, singles: Sequence[Configuration]) -> Configuration:
    if config.devices == 1:
        return config
    strong = _as_strong(config)
    return strong if _distance(strong, singles) < _distance(config, singles) else config


def _distance(config: Configuration, singles: Sequence[Configuration]) -> int:
    each = [len(differences(identity_beside(s, config), config.identity)) for s in singles]
    return min(each, default=0)


def _as_strong(config: Configuration) -> Configuration:
    runs = tuple(replace(run, cell=_strong(run.cell)) for run in config.runs)
    return replace(
        config,
        cells=tuple(map(_strong, config.cells)),
        runs=runs,
        identity=identity([run.cell for run in runs]),
        aside=tuple(replace(a, run=replace(a.run, cell=_strong(a.run.cell))) for a in config.aside),
    )


def _strong(cell: Cell) -> Cell:
    result = cell.result
    return cell if result is None else replace(cell, result=replace(result, scaling="strong"))


def _monitored(config: Configuration) -> bool:
    return is_monitored(config.cells[0].config)
