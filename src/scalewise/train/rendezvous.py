"""Where the ranks of a cell meet: on one host, at a socket that no other host can reach.

Torch's store asks nobody who he is and would listen on every interface. Whoever starts the ranks
listens on the loopback interface instead and hands the socket to rank 0, which then needs no port
that somebody else might take meanwhile.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta

    import torch
    from torch._C._distributed_c10d import Store

ENV_LISTENER = "SCALEWISE_LISTENER"
"""The descriptor of the socket that rank 0 was handed."""

LOOPBACK = "127.0.0.1"
_BACKLOG = 1024
"""Ranks that may knock before rank 0 has imported what it needs."""


def listen(port: int = 0) -> socket.socket:
    """A socket that listens on the loopback interface, on any port that is free if it is 0."""
    return socket.create_server((LOOPBACK, port), backlog=_BACKLOG)


def on_loopback(on_gpu: bool) -> dict[str, str]:
    """The environment variables that keep the ranks of one host from listening elsewhere.

    NCCL sends its data past sockets there: what it is told is no matter of speed.
    """
    return {"GLOO_SOCKET_IFNAME": "lo", **({"NCCL_SOCKET_IFNAME": "lo"} if on_gpu else {})}


def join(
    rank: int, size: int, backend: str, timeout: timedelta, device: torch.device | None = None
) -> None:
    """Make the process group with the others, where the environment variables say.

    ``device`` is what torch calls ``device_id``. Raises torch's errors where it cannot be made.
    """
    from torch.distributed import PrefixStore, init_process_group  # type: ignore[attr-defined]

    store: Store | None = None
    if os.environ["MASTER_ADDR"] == LOOPBACK:
        store = PrefixStore("default_pg", _local_store(rank, size, timeout))
    init_process_group(
        backend, store=store, rank=rank, world_size=size, timeout=timeout, device_id=device
    )


def _local_store(rank: int, size: int, timeout: timedelta) -> Store:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    port = int(os.environ["MASTER_PORT"])
    if rank > 0:
        return TCPStore(LOOPBACK, port, size, is_master=False, timeout=timeout)
    descriptor = os.environ.pop(ENV_LISTENER, None)
    # Without one, whoever started the ranks chose a port that was free.
    listener = listen(port) if descriptor is None else socket.socket(fileno=int(descriptor))
    return TCPStore(
        LOOPBACK, port, size, is_master=True, timeout=timeout,
        master_listen_fd=listener.detach(),  # which the store closes
    )  # fmt: skip
