"""Which rank this process is, how it meets the others, and whether its GPU computes."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from scalewise.config import ConfigError, first_line
from scalewise.host import ENV_LISTENER, LOOPBACK, listen
from scalewise.records import DeviceInfo
from scalewise.train.torch_internals import Store


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


def gathered(value: Any, world_size: int) -> tuple[Any, ...]:
    """``value`` of every rank, in the order of ranks. Every rank has to call it."""
    if world_size == 1:
        return (value,)
    values: list[Any] = [None] * world_size
    dist.all_gather_object(values, value)
    return tuple(values)


_TIMEOUT_S = 45
"""Ranks keep together within seconds: after this long, one of them is gone."""


class Team:
    """The ranks of an examination; alone, every question is answered by oneself.

    Barriers and small numbers go over gloo, in host memory: nothing runs on a GPU being timed.
    """

    def __init__(self, rank: int, size: int) -> None:
        """Meet the others. Raises torch's errors where that fails."""
        self.rank = rank
        self.size = size
        self._control: dist.ProcessGroup | None = None
        if size > 1:
            join(rank, size, "gloo", timedelta(seconds=_TIMEOUT_S))
            self._control = dist.group.WORLD

    @property
    def gloo(self) -> dist.ProcessGroup:
        """A group over host memory. Raises RuntimeError for a rank alone."""
        if self._control is None:
            raise RuntimeError("it needs two devices")
        return self._control

    def nccl(self) -> dist.ProcessGroup:
        """A new group over the ranks' GPUs, connected; every rank must call it."""
        group: dist.ProcessGroup = dist.new_group(
            backend="nccl", timeout=timedelta(seconds=_TIMEOUT_S)
        )
        # NCCL connects on first use, which takes seconds: not on anybody's time.
        dist.all_reduce(torch.ones(1, device="cuda"), group=group)
        torch.cuda.synchronize()
        return group

    def barrier(self) -> None:
        if self._control is not None:
            dist.barrier(group=self._control)

    def largest(self, values: Sequence[float]) -> list[float]:
        """The largest over all ranks, place by place: what the slowest rank took."""
        tensor = torch.tensor(values, dtype=torch.float64)
        if self._control is not None:
            dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._control)
        return [float(value) for value in tensor]

    def all_agree(self, mine: bool) -> bool:
        """Whether it is so on every rank."""
        return self.largest([0.0 if mine else 1.0])[0] == 0.0


CHECK_SIZE = 256
_SEED = 20_000


class DeviceError(RuntimeError):
    """A GPU that does not compute as it should: one line that names it."""


def settle_device(rank: RankContext, memory_cap_gib: float | None, check: bool) -> None:
    """Make the rank's GPU current, cap its memory, and prove that it computes.

    Nothing happens on a CPU. The cap is of torch's allocator: the CUDA context and NCCL's buffers
    come on top. Raises ConfigError for one beyond the GPU's memory, and :class:`DeviceError` where
    the check fails.
    """
    if rank.device.kind != "cuda":
        return
    torch.cuda.set_device(rank.local_rank)
    if memory_cap_gib is not None:
        total_gib = torch.cuda.get_device_properties(rank.local_rank).total_memory / 2**30
        if memory_cap_gib > total_gib:
            raise ConfigError(
                f"hardware.memory_cap_gib: found {memory_cap_gib:g}, but the GPU has "
                f"{total_gib:.1f} GiB; allowed: at most that, or null for no limit"
            )
        torch.cuda.set_per_process_memory_fraction(memory_cap_gib / total_gib)
    if check:
        check_computes(torch.device("cuda", rank.local_rank))


def check_computes(device: torch.device) -> None:
    """Multiply two matrices on ``device`` and on the CPU, in fp64, and compare.

    Takes milliseconds. Raises :class:`DeviceError` if the product is wrong, or the device fails.
    """
    generator = torch.Generator().manual_seed(_SEED)
    a, b = torch.randn(2, CHECK_SIZE, CHECK_SIZE, dtype=torch.float64, generator=generator)
    expected = a @ b
    try:
        found = (a.to(device) @ b.to(device)).cpu()
    except RuntimeError as error:
        line = first_line(error, with_class=False)
        raise DeviceError(f"{_name(device)} failed its check before training: {line}") from error
    worst = float((found - expected).abs().max() / expected.abs().max())
    if not worst < 1e-12:
        raise DeviceError(
            f"{_name(device)} failed its check before training: a {CHECK_SIZE}x{CHECK_SIZE} fp64 "
            f"product is off by {worst:.2g} of its size; take the GPU out of service "
            "(hardware.gpus=...), or switch the check off (execution.device_check=false)"
        )


def _name(device: torch.device) -> str:
    if device.type != "cuda":
        return str(device)
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} (GPU-{properties.uuid})"
