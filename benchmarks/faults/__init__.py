"""Faults planted on purpose: does the analysis find what was planted, and only that?

``plan`` says what is planted and how strongly, ``plant`` does it in a rank, ``records`` in its
records. ``observe`` says what was named in each run, ``matrix`` counts it (confusion
matrix, detection limits), ``page`` writes it down. ``benchmarks/self_test.py`` starts the runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt

Kind = Literal[
    "slow_rank", "slow_loader", "skewed_shards", "no_sampler", "oversubscribe", "stall",
    "configuration", "throttled_replay", "per_replica_import", "second_context", "common_stall",
]  # fmt: skip


@dataclass(frozen=True)
class FaultConfig:
    """What is planted, where, and how strongly: the arguments of ``PlantedFault``."""

    kind: Kind
    """``configuration``: other keys of the configuration are the fault."""
    rank: Annotated[int, Field(ge=-1)] = -1
    """The rank it strikes; -1 for all."""
    ms: NonNegativeFloat = 0.0
    """Delay in forward (``slow_rank``, ``stall``, ``common_stall``) or of each batch
    (``slow_loader``)."""
    excess: NonNegativeFloat = 0.0
    """``skewed_shards``: share of a fair batch that the rank takes beyond it."""
    every_n_steps: Annotated[int, Field(ge=2)] = 50
    """``stall``: one step in so many."""
    at_s: NonNegativeFloat = 0.5
    """``second_context``, ``common_stall``: so long after the first step, once."""
    processes: NonNegativeInt = 0
    """``oversubscribe``: busy processes on the cores of each rank."""
    mhz: Annotated[float, Field(gt=0, le=1980)] = 1200.0
    """``throttled_replay``: the SM clock that is left of 1980 MHz."""
    digits: Annotated[int, Field(ge=1, le=15)] = 3
    """``per_replica_import``: significant digits of the published figures."""

    def strikes(self, rank: int) -> bool:
        """The first GPU holds the first rank's context already: no second one there."""
        return self.rank in (-1, rank) and not (self.kind == "second_context" and rank == 0)
