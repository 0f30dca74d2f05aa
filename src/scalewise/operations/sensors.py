"""Operations: what makes an ``nn.Module`` one, and two of robotics.

They are fusion of timed streams at common times, and voxelization of points with features, by
PyTorch's own operators: ``execution=compile`` makes one or two kernels of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalewise.config import require


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


def join_ranks(value: Tensor, how: Literal["sum", "max", "mean"]) -> Tensor:
    """``value`` of all ranks together, in place and on every rank. Alone, it stays as it is."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return value
    dist.all_reduce(value, dist.ReduceOp.MAX if how == "max" else dist.ReduceOp.SUM)
    return value.div_(dist.get_world_size()) if how == "mean" else value


FusionBatch = tuple[Sequence[Tensor], Sequence[Tensor], Tensor]
"""``(streams, times, targets)``: ``[B, S_i, D_i]`` each, ``[B, S_i]`` each, ``[B, T]``."""


def interpolate(stream: Tensor, times: Tensor, targets: Tensor) -> Tensor:
    """Values of a stream at other times, on the straight line between its neighbours.

    Args:
        stream: ``[B, S, D]``, floating point.
        times: ``[B, S]``, ascending along S.
        targets: ``[B, T]``. Before the first and after the last time the end value is held.

    Returns ``[B, T, D]`` in the stream's type, computed in 32 bits.
    """
    right = torch.searchsorted(times, targets).clamp(max=times.shape[1] - 1)
    left = (right - 1).clamp(min=0)
    begin, end = times.gather(1, left), times.gather(1, right)
    span = end - begin
    # Neighbours at the same time leave nothing to interpolate: the first of them holds.
    weight = torch.where(span > 0, (targets - begin) / span, 0.0).clamp(max=1).unsqueeze(-1)
    width = (-1, -1, stream.shape[2])
    before = stream.gather(1, left.unsqueeze(-1).expand(width)).float()
    after = stream.gather(1, right.unsqueeze(-1).expand(width)).float()
    return torch.lerp(before, after, weight.float()).to(stream.dtype)


class Fusion(nn.Module):
    """Every stream interpolated at the targets, joined along the features, as a model of a cell.

    ``combine_ranks``: averaged over them, as of a robot.
    """

    forward_only: ClassVar[Literal[True]] = True

    def __init__(self, combine_ranks: bool = True) -> None:
        super().__init__()
        self.combine_ranks = combine_ranks

    def forward(self, batch: FusionBatch) -> Tensor:
        """Fused features ``[B, T, sum D_i]``."""
        streams, times, targets = batch
        each = (interpolate(s, t, targets) for s, t in zip(streams, times, strict=True))
        fused = torch.cat(tuple(each), dim=-1)
        return join_ranks(fused, "mean") if self.combine_ranks else fused

    def counts(self) -> dict[str, float]:
        return {}


Mode = Literal["count", "occupancy", "mean", "max"]
"""``count``: points in each voxel; ``occupancy``: 1 where there is one; both int32
``[B, X, Y, Z]``. ``mean`` and ``max`` of the features of the points in each voxel: fp32
``[B, X, Y, Z, F]``, 0 where there is none."""


class Voxelize(nn.Module):
    """Point clouds to grids, as a model of a cell.

    Args:
        mode: see :data:`Mode`.
        grid_minimum: the corner where the first voxel begins, in the points' unit.
        voxel_size: length of a voxel's edge.
        grid_shape: voxels along x, y and z.
        combine_ranks: join the grids of all ranks as if one had had all points: counts and sums
            are added, occupancy and maxima take the larger.
    """

    forward_only: ClassVar[Literal[True]] = True
    dropped: Tensor
    batches: Tensor

    def __init__(
        self,
        mode: Mode = "mean",
        grid_minimum: Sequence[float] = (-4.0, -4.0, -4.0),
        voxel_size: float = 0.0625,
        grid_shape: Sequence[int] = (128, 128, 128),
        combine_ranks: bool = True,
    ) -> None:
        super().__init__()
        require("voxel_size", voxel_size, voxel_size > 0, "above 0")
        require("grid_minimum", grid_minimum, len(grid_minimum) == 3, "three numbers")
        fits = len(grid_shape) == 3 and min(grid_shape) >= 1
        require("grid_shape", grid_shape, fits, "three numbers of at least 1")
        self.mode: Mode = mode
        self.minimum, self.voxel_size, self.shape = tuple(grid_minimum), voxel_size, (*grid_shape,)
        self.combine_ranks = combine_ranks
        # On the device, both: a number of Python's that changes would be compiled anew each step.
        for name in ("dropped", "batches"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The grid for points ``[B, N, 3]`` and features ``[B, N, F]``."""
        points, features = batch
        voxel, inside = self.voxel_of(points)
        self.dropped += (~inside).sum()
        self.batches += 1
        # One voxel more takes what is outside, so that nobody has to wait and see how many there
        # are.
        size = len(points) * math.prod(self.shape) + 1
        voxels = self._voxels(voxel.flatten(), features.flatten(0, 1).float(), size)
        return voxels.view(len(points), *self.shape, *voxels.shape[1:])

    def voxel_of(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """The voxel of each point ``[B, N, 3]``, ``floor((p - minimum) / voxel_size)``.

        Returns int64 ``[B, N]``, numbered through the whole batch (x slowest, z fastest), and
        whether the point is inside. A point outside, or not a number, has one past the last.
        """
        place = ((points - points.new_tensor(self.minimum)) / self.voxel_size).floor()
        inside = ((place >= 0) & (place < points.new_tensor(self.shape))).all(-1)
        x, y, z = torch.where(inside.unsqueeze(-1), place, 0.0).to(torch.int64).unbind(-1)
        clouds = torch.arange(len(points), device=points.device).unsqueeze(1)
        voxel = ((clouds * self.shape[0] + x) * self.shape[1] + y) * self.shape[2] + z
        return torch.where(inside, voxel, len(points) * math.prod(self.shape)), inside

    def _voxels(self, voxel: Tensor, rows: Tensor, size: int) -> Tensor:
        """``[voxels]`` or ``[voxels, F]`` of points in ``voxel`` that have these ``rows``."""
        if self.mode == "occupancy":
            occupied = voxel.new_zeros(size, dtype=torch.int32).index_fill_(0, voxel, 1)
            return self._joined(occupied[:-1], "max")
        if self.mode == "max":
            index = voxel.unsqueeze(1).expand_as(rows)
            lowest = rows.new_full((size, rows.shape[1]), -torch.inf)
            values = self._joined(lowest.scatter_reduce_(0, index, rows, "amax")[:-1], "max")
            return torch.where(values == -torch.inf, 0.0, values)
        ones = torch.ones_like(voxel, dtype=torch.int32)
        counts = self._joined(ones.new_zeros(size).scatter_add_(0, voxel, ones)[:-1], "sum")
        if self.mode == "count":
            return counts
        sums = rows.new_zeros(size, rows.shape[1]).index_add_(0, voxel, rows)
        return self._joined(sums[:-1], "sum") / counts.clamp(min=1).unsqueeze(1)

    def _joined(self, voxels: Tensor, how: Literal["sum", "max"]) -> Tensor:
        return join_ranks(voxels, how) if self.combine_ranks else voxels

    def counts(self) -> dict[str, float]:
        """``points_dropped_per_batch``: points of this rank that were outside the grid."""
        batches = self.batches.item()
        return {"points_dropped_per_batch": self.dropped.item() / batches} if batches else {}
