"""What makes an ``nn.Module`` an operation, and how its results join over ranks."""

from __future__ import annotations

import importlib.util
from typing import Any, Literal, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor

Implementation = Literal["auto", "batched", "triton"]
"""``batched``: PyTorch's own operators. ``triton``: kernels of ours, on NVIDIA GPUs. ``auto``:
``triton`` where it runs."""


@runtime_checkable
class Operation(Protocol):
    """An ``nn.Module`` that is only ever run forward."""

    forward_only: Literal[True]

    def forward(self, batch: Any) -> Tensor:
        """The result for one batch of the data set made for this operation."""
        ...

    def counts(self) -> dict[str, float]:
        """What was counted on the device while running, read once at the end."""
        ...


def uses_triton(implementation: Implementation, device: torch.device) -> bool:
    """Whether to run our kernels. Raises ValueError where they are asked for and cannot run."""
    if implementation == "batched":
        return False
    available = device.type == "cuda" and importlib.util.find_spec("triton") is not None
    if implementation == "triton" and not available:
        raise ValueError(
            f"implementation: found triton on {device.type}; allowed: batched or auto, or an "
            "NVIDIA GPU with the package triton"
        )
    return available


def join_ranks(value: Tensor, how: Literal["sum", "max", "mean"]) -> Tensor:
    """``value`` of all ranks together, in place and on every rank. Alone, it stays as it is."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return value
    dist.all_reduce(value, dist.ReduceOp.MAX if how == "max" else dist.ReduceOp.SUM)
    return value.div_(dist.get_world_size()) if how == "mean" else value
