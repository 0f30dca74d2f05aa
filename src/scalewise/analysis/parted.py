"""The finished repeats of a configuration, those that are not compared told apart."""

from __future__ import annotations

from collections.abc import Mapping
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
