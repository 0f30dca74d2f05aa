"""The finished repeats of a configuration, those that are not compared told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scalewise.analysis.cells import Cell

ENOUGH_RUNS = 2
"""Fewer repeats have no interval: once some were set aside, that is too few to compare."""


@dataclass(frozen=True)
class Aside:
    """Why one repeat is not compared with the others of its configuration."""

    reason: str
    """What it did, as ``shared the host with pid 4711 (python)``."""
    remedy: str
    """How to run it again so that it counts, as ``on a quiet host``."""


@dataclass(frozen=True)
class Parted:
    """The finished repeats of one configuration."""

    kept: tuple[Cell, ...]
    aside: Mapping[str, Aside]
    """By the name of each cell that was set aside."""


def part_by_protocol(groups: Mapping[str, Sequence[Cell]]) -> dict[str, Parted]:
    """The finished cells of every configuration, by its id, those of an older protocol told apart.

    Times taken in two ways have no common mean: not even ``sweep.allow_mixed`` makes one.
    """
    done = {key: [c for c in cells if c.result is not None] for key, cells in groups.items()}
    return {key: _newest_protocol(cells) for key, cells in done.items()}


def _newest_protocol(cells: Sequence[Cell]) -> Parted:
    """What nobody recorded is kept: its unknown provenance equals nothing."""
    protocols = {c.planned.name: c.provenance.protocol for c in cells if c.provenance is not None}
    newest = max(protocols.values(), default=0)
    aside = {
        name: Aside(f"was timed by protocol {protocol}, not {newest}", "with sweep.rerun=all")
        for name, protocol in protocols.items()
        if protocol != newest
    }
    return Parted(tuple(c for c in cells if c.planned.name not in aside), aside)
