"""What makes an ``nn.Module`` an operation, and how its results join over ranks."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
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


Mode = Literal["count", "occupancy", "mean", "max"]
"""``count``: points in each voxel; ``occupancy``: 1 where there is one; both int32
``[B, X, Y, Z]``. ``mean`` and ``max`` of the features of the points in each voxel: fp32
``[B, X, Y, Z, F]``, 0 where there is none."""


@dataclass(frozen=True)
class Grid:
    """A box cut into equal cubes."""

    minimum: tuple[float, float, float]
    """The corner where the first voxel begins."""
    voxel_size: float
    """Length of a voxel's edge."""
    shape: tuple[int, int, int]
    """Voxels along x, y and z."""

    @property
    def voxels(self) -> int:
        x, y, z = self.shape
        return x * y * z


@dataclass
class Sums:
    """A grid half done: what ranks can add up before it is finished."""

    counts: Tensor | None
    """int32 ``[B * voxels]``: points, or 1 for any in ``occupancy``; None in ``max``."""
    features: Tensor | None
    """fp32 ``[B * voxels, F]``: sums, or maxima with -inf for none; None where none are needed.
    Kernels keep maxima as int32 in the order of the floats."""
    dropped: Tensor
    """int64 scalar: points outside the grid, of all clouds of the batch."""


def voxel_of(points: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """The voxel of each point, ``floor((p - minimum) / voxel_size)``.

    Args:
        points: fp32 ``[B, N, 3]``.

    Returns int64 ``[B, N]``, numbered through the whole batch (x slowest, z fastest), and whether
    the point is inside. A point outside, or not a number, has ``B * voxels``: one past the last.
    """
    place = ((points - points.new_tensor(grid.minimum)) / grid.voxel_size).floor()
    inside = ((place >= 0) & (place < points.new_tensor(grid.shape))).all(-1)
    x, y, z = torch.where(inside.unsqueeze(-1), place, 0.0).to(torch.int64).unbind(-1)
    clouds = torch.arange(len(points), device=points.device).unsqueeze(1)
    voxel = ((clouds * grid.shape[0] + x) * grid.shape[1] + y) * grid.shape[2] + z
    return torch.where(inside, voxel, len(points) * grid.voxels), inside
