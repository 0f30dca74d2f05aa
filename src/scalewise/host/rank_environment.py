"""The environment of a rank: who sets it, what is recorded of it, and where ranks of a host meet.

Torch's store asks nobody who he is and would listen on every interface. Whoever starts the ranks
listens on the loopback interface instead and hands the socket to rank 0, which then needs no port
that somebody else might take meanwhile.
"""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Mapping, Sequence

import psutil

ENV_STARTED = "SCALEWISE_STARTED"
"""``forked`` in the environment of a rank that is a fork; a freshly started one has none."""
ENV_LISTENER = "SCALEWISE_LISTENER"
"""The descriptor of the socket that rank 0 was handed."""
ENV_INHERITED = "SCALEWISE_INHERITED"
"""Descriptors that a rank was handed, with commas between them."""
ENV_SCRIPT = "SCALEWISE_SCRIPT"
"""The place of a rank whose program is a script, as JSON, until a process has taken it."""
ENV_WRAPPED = "SCALEWISE_WRAPPED"
"""``1`` where another program (``hydra.launcher.wrap``) starts the rank."""
STACKS_SIGNAL = signal.SIGUSR1
"""The supervisor sends it before it ends a rank whose heart has stopped beating."""
LOOPBACK = "127.0.0.1"
_BACKLOG = 1024
"""Ranks that may knock before rank 0 has imported what it needs."""

SCRUBBED_NAMES = (
    "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "GROUP_RANK", "RANK", "LOCAL_RANK", "WORLD_SIZE",
    "LOCAL_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "PL_GLOBAL_SEED", "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE", "SLURM_PROCID", "SLURM_LOCALID",
)  # fmt: skip
"""Variables that another launcher may have left behind. Lightning believes any of these: a child
that sees SLURM_NTASKS takes itself for a SLURM task, and one that sees a MASTER_PORT waits there.
"""


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without the traces of any other process launcher."""
    return {
        name: value
        for name, value in environment.items()
        if name not in SCRUBBED_NAMES and not name.startswith("TORCHELASTIC_")
    }


_RECORDED = re.compile(
    "(NCCL|(PY)?TORCH|TORCHDYNAMO|TORCHINDUCTOR|CUDA|CUBLAS|CUBLASLT|OMP|KMP|GOMP|MKL|OPENBLAS|"
    "GLOO|TP)_[A-Z0-9_]+|NVIDIA_(TF32_OVERRIDE|VISIBLE_DEVICES|DRIVER_CAPABILITIES)"
)
"""Variables that change times or results: of torch, its libraries and their threads."""
_PRIVATE = re.compile("ADDR|HOST(ID|_?NAME)|COMM_ID|KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL")
"""In names of variables that may tell a host or a secret."""
_PATHS = ("CUDA_HOME", "NCCL_GRAPH_FILE", "NCCL_TOPO_FILE")
"""The paths that are recorded; any other may lead to a person's folder."""


def recorded_in(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``environment`` that may be recorded, sorted by name."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if _RECORDED.fullmatch(name)
        and not _PRIVATE.search(name)
        and ("/" not in value or name in _PATHS)
    }


def rendezvous(rank: int, local_rank: int, world_size: int, port: int) -> dict[str, str]:
    """The environment variables by which the ranks of one host find each other."""
    return {
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        "NODE_RANK": "0",
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(world_size),
    }


def foreign_launch(environment: Mapping[str, str] = os.environ) -> tuple[str, int, int] | None:
    """(launcher, rank, processes) when torchrun or srun started this process as one of several.

    Where both did, tasks of srun that each start torchrun, it is the one it is not the first of.
    """
    found = [
        (launcher, int(environment[rank]), int(environment[size]))
        for launcher, run, rank, size in (
            ("torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"),
            ("srun", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS"),
        )
        if {run, rank, size} <= environment.keys()
    ]
    return max(found, key=lambda one: one[1], default=None)


def listen(port: int = 0) -> socket.socket:
    """A socket that listens on the loopback interface, on any port that is free if it is 0."""
    return socket.create_server((LOOPBACK, port), backlog=_BACKLOG)


def interface_towards(address: str) -> str | None:
    """The network interface that leads to ``address``; None where none does.

    gloo would otherwise listen where this host's own name points to, which on many hosts is the
    loopback interface: there, no other host finds it.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing: the kernel only chooses the route
            own = probe.getsockname()[0]
    except OSError:
        return None
    found = psutil.net_if_addrs().items()
    return next((name for name, known in found if own in [one.address for one in known]), None)


def free_port() -> int:
    """A port that nobody listens on right now, on any interface."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def on_loopback(on_gpu: bool) -> dict[str, str]:
    """The environment variables that keep the ranks of one host from listening elsewhere.

    NCCL sends its data past sockets there: what it is told is no matter of speed.
    """
    return {"GLOO_SOCKET_IFNAME": "lo", **({"NCCL_SOCKET_IFNAME": "lo"} if on_gpu else {})}


def keep_from_children(inherited: Sequence[int]) -> None:
    """Close what was handed to this process in whatever it executes; its forks still have it."""
    for descriptor in inherited:
        os.set_inheritable(descriptor, False)
