"""How ranks make their process group: on one host, at a socket that no other host can reach."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from scalewise.rank_environment import ENV_LISTENER, LOOPBACK, listen

if TYPE_CHECKING:
    from datetime import timedelta

    import torch
    from torch._C._distributed_c10d import Store


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
