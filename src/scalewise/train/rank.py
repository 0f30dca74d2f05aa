"""Which rank this process is: asked here and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from scalewise.records import DeviceInfo

ENV_STARTED = "SCALEWISE_STARTED"
"""``forked`` in the environment of a rank that is a fork; a freshly started one has none."""


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


SCRUBBED_NAMES = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
    "GROUP_RANK",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "PL_GLOBAL_SEED",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_PROCID",
    "SLURM_LOCALID",
)
"""What another launcher may have left behind. Lightning believes any of these: a child that sees
SLURM_NTASKS takes itself for a SLURM task, and one that sees a MASTER_PORT waits there."""


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without the traces of any other process launcher."""
    return {
        name: value
        for name, value in environment.items()
        if name not in SCRUBBED_NAMES and not name.startswith("TORCHELASTIC_")
    }


def rendezvous(rank: int, local_rank: int, world_size: int, port: int) -> dict[str, str]:
    """The environment variables by which the ranks of one host find each other."""
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "NODE_RANK": "0",
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(world_size),
    }


def across_hosts(node: int, address: str) -> dict[str, str]:
    """What differs where the ranks are on several hosts: rank 0 listens at ``address``."""
    return {"MASTER_ADDR": address, "NODE_RANK": str(node)}


def foreign_launch(environment: Mapping[str, str] = os.environ) -> tuple[str, int, int] | None:
    """(launcher, rank, processes) when torchrun or srun started this process as one of several."""
    for launcher, rank, size in (
        ("torchrun", "RANK", "WORLD_SIZE"),
        ("srun", "SLURM_PROCID", "SLURM_NTASKS"),
    ):
        if launcher == "srun" and "SLURM_STEP_ID" not in environment:
            continue
        if launcher == "torchrun" and "TORCHELASTIC_RUN_ID" not in environment:
            continue
        if rank in environment and size in environment:
            return launcher, int(environment[rank]), int(environment[size])
    return None
