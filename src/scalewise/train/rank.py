"""Which rank this process is: asked here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

from scalewise.records import DeviceInfo


@dataclass(frozen=True)
class RankContext:
    """One process of a cell, as its supervisor started it."""

    rank: int
    local_rank: int
    world_size: int
    device: DeviceInfo
    hosts: int = 1
    """Hosts that run the cell, with equally many ranks each."""

    @property
    def is_first(self) -> bool:
        """Rank 0 writes what is written once for all ranks."""
        return self.rank == 0

    @property
    def describes_host(self) -> bool:
        """Whether it records provenance: the last rank of the first host.

        Not rank 0, at which all others knock: one that finds it not listening yet comes back only
        after half a second.
        """
        return self.rank == self.world_size // self.hosts - 1
