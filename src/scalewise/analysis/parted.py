"""The finished repeats of a configuration, those that are not compared told apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scalewise.analysis.cells import Cell
from scalewise.analysis.identity import Difference, Identity, code_and_data

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


def part_by_state(groups: Mapping[str, Sequence[Cell]]) -> dict[str, Parted]:
    """The finished cells of every configuration, by its id, those of older code or data told apart.

    An id stays the same whatever is written in a class's or a data set's file later. What nobody
    recorded is no other state. With ``sweep.allow_mixed`` all repeats are kept.
    """
    done = {key: [c for c in cells if c.result is not None] for key, cells in groups.items()}
    return {
        key: Parted(tuple(cells), {}) if mixing_allowed(cells) else _latest_state(cells)
        for key, cells in done.items()
    }


def mixing_allowed(cells: Iterable[Cell]) -> bool:
    """Whether any of these cells was started with ``sweep.allow_mixed``."""
    sweeps = [(cell.config or {}).get("sweep") for cell in cells]
    return any(isinstance(s, Mapping) and s.get("allow_mixed") is True for s in sweeps)


def _latest_state(cells: Sequence[Cell]) -> Parted:
    state: dict[str, str] = {}
    aside: dict[str, Aside] = {}
    for cell in sorted(cells, key=lambda c: c.result.finished_at if c.result else 0, reverse=True):
        own = code_and_data(cell)
        other = _differences(own, state)
        if other:
            words = "; ".join(map(str, other))
            why = f"ran other code or data than the latest repeat: {words}"
            aside[cell.planned.name] = Aside(why, "with code and data left as they are")
        else:
            state |= own
    return Parted(tuple(c for c in cells if c.planned.name not in aside), aside)


def _differences(one: Identity, state: Identity) -> list[Difference]:
    return [Difference(n, v, state[n]) for n, v in one.items() if state.get(n, v) != v]
