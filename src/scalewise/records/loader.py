"""What the loaders of all ranks give without a model: ``loader.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

_Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class LoaderPass:
    """One rank's loader, while those of all other ranks ran too."""

    start_s: NonNegativeFloat
    """Until its workers ran and all that they fetch ahead at once had come."""
    seconds: NonNegativeFloat
    """The steady time after the start."""
    batches: NonNegativeInt
    """Batches that came in it: whole rounds of the workers."""
    samples: NonNegativeInt


@dataclass(frozen=True)
class LoaderRate:
    """All ranks at the same time, in one state of the page cache."""

    global_samples_per_s: PositiveFloat
    """Batches a second of the slowest rank times the samples of a batch of all ranks: what steps
    that wait for every rank could have at most."""
    ranks: tuple[LoaderPass, ...]


@dataclass(frozen=True)
class DroppedFiles:
    """The files that arguments of the data set name, in the page cache of one host."""

    files: NonNegativeInt = 0
    file_bytes: NonNegativeInt = 0
    resident_share: _Share | None = None
    """What was in memory after they had been dropped; None where that is not known."""
    resident_share_after: _Share | None = None
    """The same after the pass that followed: what it and its readahead had read."""
    obstacle: str | None = None
    """Why that pass cannot be called cold."""


@dataclass(frozen=True)
class LoaderRecord:
    """The ceiling that loaders put on training; None has its reason in ``missing``."""

    FILE: ClassVar[str] = "loader.json"
    batch_sizes: tuple[PositiveInt, ...]
    """Each rank's share of a batch."""
    steps_per_batch: PositiveInt
    """Batches that a loader hands over as one."""
    warm: LoaderRate | None
    """Over the batches that a pass before it had read."""
    cold: LoaderRate | None
    """The first epoch, after the files of the data set were dropped from the page cache."""
    dropped: tuple[DroppedFiles, ...]
    """One a host."""
    missing: Mapping[str, str] = field(default_factory=dict)
