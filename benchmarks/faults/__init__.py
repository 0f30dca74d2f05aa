"""Faults planted on purpose: does the diagnosis find what was planted, and only that?

``plan`` says what is planted and how strongly, ``plant`` does it in a rank, ``records`` in its
records. ``observe`` says what the diagnosis named in each run, ``matrix`` counts it (confusion
matrix, detection limits), ``page`` writes it down. ``benchmarks/self_test.py`` starts the runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "slow_rank", "slow_loader", "skewed_shards", "no_sampler", "oversubscribe", "stall",
    "configuration", "throttled_replay", "per_replica_import", "second_context", "common_stall",
]  # fmt: skip


@dataclass(frozen=True)
class FaultConfig:
    """What is planted, where, and how strongly: the arguments of ``PlantedFault``."""

    kind: Kind
    """``configuration``: other keys of the configuration are the fault."""
    rank: int = -1
    """The rank it strikes; -1 for all."""
    ms: float = 0.0
    """Delay in forward (``slow_rank``, ``stall``, ``common_stall``) or of each batch
    (``slow_loader``)."""
    excess: float = 0.0
    """``skewed_shards``: share of a fair batch that the rank takes beyond it."""
    every_n_steps: int = 50
    """``stall``: one step in so many."""
    at_s: float = 0.5
    """``second_context``, ``common_stall``: so long after the first step, once."""
    processes: int = 0
    """``oversubscribe``: busy processes on the cores of each rank."""
    mhz: float = 1200.0
    """``throttled_replay``: the SM clock that is left of 1980 MHz."""
    digits: int = 3
    """``per_replica_import``: significant digits of the published figures."""

    def __post_init__(self) -> None:
        if self.rank < -1:
            raise ValueError(f"rank: found {self.rank}; allowed: a rank, or -1 for all")
        for name in ("ms", "excess", "at_s", "processes"):
            value = getattr(self, name)
            if value < 0:
                raise ValueError(f"{name}: found {value}; allowed: 0 or more")
        if not 0 < self.mhz <= 1980:
            raise ValueError(f"mhz: found {self.mhz}; allowed: above 0, at most 1980")
        if not 1 <= self.digits <= 15:
            raise ValueError(f"digits: found {self.digits}; allowed: 1 to 15")
        if self.every_n_steps < 2:
            raise ValueError(f"every_n_steps: found {self.every_n_steps}; allowed: 2 or more")

    def strikes(self, rank: int) -> bool:
        """The first GPU holds the first rank's context already: no second one there."""
        return self.rank in (-1, rank) and not (self.kind == "second_context" and rank == 0)
