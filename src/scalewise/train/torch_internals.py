"""All private parts of torch that training uses, tried on torch 2.11 and 2.13.

A torch that lacks one of them fails here and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

# The public names of these three (torch.autograd.DeviceType,
# torch.distributed.GradBucket and .Store) are not exported for type checkers.
from torch._C._autograd import DeviceType as DeviceType
from torch._C._distributed_c10d import GradBucket as GradBucket
from torch._C._distributed_c10d import Store as Store

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

copy_all = torch._foreach_copy_
"""One launch for a list of tensors."""
tracing_state: Callable[[], object] = torch._C._get_tracing_state
"""None unless ``torch.jit.trace`` runs: sizes are tensors then."""
backward_id: Callable[[], int] = torch._C._current_graph_task_id
"""Of which backward pass this thread runs a part; -1 outside of any."""


def leave_out_of_graphs(package: str) -> None:
    """Let ``torch.compile``, once it was asked for, trace nothing of ``package``."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None:
        rules.add(package)


def work_of_future(future: Any) -> Any:
    """What a collective returns that is done when ``future`` is."""
    return torch._C._distributed_c10d._create_work_from_future(future)  # type: ignore[attr-defined]


def let_find(group: Any) -> None:
    """Make a group of one's own known by its name, by which functional collectives look for it."""
    torch._C._distributed_c10d._register_process_group(group.group_name, group)


def bucket_bytes(model: DistributedDataParallel) -> list[int]:
    """Bytes of each gradient bucket that DDP reduces by now; empty before it knows."""
    seen = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    for name in ("rebuilt_bucket_sizes", "bucket_sizes", "initial_bucket_sizes"):
        sizes = [int(size) for size in str(seen.get(name, "")).split(",") if size.strip()]
        if sizes:
            return sizes
    return []


def limit_waiting(timeout: timedelta) -> None:
    """Give every process group of this rank that time-out; a rehearsed one waits for nobody."""
    from torch.distributed import distributed_c10d

    for group in list(distributed_c10d._world.pg_map):
        if group._device_types:
            distributed_c10d._set_pg_timeout(timeout, group)


def default_store() -> Store:
    """Where the ranks of this process's group met. Raises ValueError where there is none."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()


def file_store(path: str, size: int) -> Store:
    """Where ``size`` ranks meet without a process group: a file that all of them reach."""
    from torch._C._distributed_c10d import FileStore

    return FileStore(path, size)


def compiled_graphs() -> int:
    """Graphs that this process has compiled so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def graph_breaks() -> int:
    """Places where the compiler handed back to Python."""
    from torch._dynamo.utils import counters

    return sum(counters["graph_break"].values())


def count_compile_threads() -> None:
    """Let as many processes compile as this one has cores now: a fork had more on import.

    Nothing happens where the compiler is not loaded yet. Tried on torch 2.13.
    """
    config: Any = sys.modules.get("torch._inductor.config")
    if config is not None:
        config.compile_threads = config.decide_compile_threads()


def stop_allocating_to(device: int, pool: Any) -> None:
    """End a broken capture's hold on the allocator. Tried on torch 2.11.

    Raises RuntimeError where nothing allocates to ``pool``.
    """
    torch._C._cuda_endAllocateToPool(device, pool)
