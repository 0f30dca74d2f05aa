"""Voxelization: points with features gathered into the cells of a regular grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from scalewise.operations.contract import Implementation, join_ranks, uses_triton
from scalewise.ranges import require

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


def gather(points: Tensor, features: Tensor, grid: Grid, mode: Mode) -> Sums:
    """Points ``[B, N, 3]`` with features ``[B, N, F]`` into voxels, by PyTorch's own operators."""
    voxel, inside = voxel_of(points, grid)
    voxel = voxel.flatten()
    # One voxel more takes what is outside, so that nobody has to wait and see how many there are.
    size = len(points) * grid.voxels + 1
    counts = values = None
    if mode in ("count", "mean"):
        ones = torch.ones_like(voxel, dtype=torch.int32)
        counts = ones.new_zeros(size).scatter_add_(0, voxel, ones)[:-1]
    elif mode == "occupancy":
        counts = voxel.new_zeros(size, dtype=torch.int32).index_fill_(0, voxel, 1)[:-1]
    rows = features.flatten(0, 1).float()
    if mode == "mean":
        values = rows.new_zeros(size, rows.shape[1]).index_add_(0, voxel, rows)[:-1]
    elif mode == "max":
        index = voxel.unsqueeze(1).expand_as(rows)
        lowest = rows.new_full((size, rows.shape[1]), -torch.inf)
        values = lowest.scatter_reduce_(0, index, rows, "amax")[:-1]
    return Sums(counts, values, (~inside).sum())


def finish(sums: Sums, clouds: int, grid: Grid, mode: Mode) -> Tensor:
    """The grid of :data:`Mode` from what was gathered."""
    if mode in ("count", "occupancy"):
        assert sums.counts is not None
        return sums.counts.view(clouds, *grid.shape)
    assert sums.features is not None
    if mode == "mean":
        assert sums.counts is not None
        values = sums.features / sums.counts.clamp(min=1).unsqueeze(1)
    else:
        values = torch.where(sums.features == -torch.inf, 0.0, sums.features)
    return values.view(clouds, *grid.shape, -1)


class Voxelize(nn.Module):
    """Point clouds to grids, as a model of a cell.

    Args:
        mode: see :data:`Mode`.
        grid_minimum, voxel_size, grid_shape: see :class:`Grid`; of the points' unit.
        implementation: see :data:`Implementation`.
        combine_ranks: join the grids of all ranks as if one had had all points: counts and sums
            are added, occupancy and maxima take the larger.
    """

    forward_only: ClassVar[Literal[True]] = True
    dropped: Tensor

    def __init__(
        self,
        mode: Mode = "mean",
        grid_minimum: Sequence[float] = (-4.0, -4.0, -4.0),
        voxel_size: float = 0.0625,
        grid_shape: Sequence[int] = (128, 128, 128),
        implementation: Implementation = "auto",
        combine_ranks: bool = True,
    ) -> None:
        super().__init__()
        require("voxel_size", voxel_size, voxel_size > 0, "above 0")
        require("grid_minimum", grid_minimum, len(grid_minimum) == 3, "three numbers")
        fits = len(grid_shape) == 3 and min(grid_shape) >= 1
        require("grid_shape", grid_shape, fits, "three numbers of at least 1")
        x, y, z = grid_minimum
        along_x, along_y, along_z = grid_shape
        self.mode: Mode = mode
        self.grid = Grid((x, y, z), voxel_size, (along_x, along_y, along_z))
        self.implementation = implementation
        self.combine_ranks = combine_ranks
        self.register_buffer("dropped", torch.zeros((), dtype=torch.int64), persistent=False)
        self._batches = 0

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The grid for points ``[B, N, 3]`` and features ``[B, N, F]``."""
        points, features = batch
        triton = uses_triton(self.implementation, points.device)
        if triton:
            from scalewise.operations.voxel_kernel import finish_triton, gather_triton

            sums = gather_triton(points, features, self.grid, self.mode)
        else:
            sums = gather(points, features, self.grid, self.mode)
        self.dropped += sums.dropped
        self._batches += 1
        if self.combine_ranks:
            self._join(sums)
        return (finish_triton if triton else finish)(sums, len(points), self.grid, self.mode)

    def _join(self, sums: Sums) -> None:
        largest = self.mode in ("occupancy", "max")
        for part in (sums.counts, sums.features):
            if part is not None:
                join_ranks(part, "max" if largest else "sum")

    def counts(self) -> dict[str, float]:
        """``points_dropped_per_batch``: points of this rank that were outside the grid."""
        if not self._batches:
            return {}
        return {"points_dropped_per_batch": self.dropped.item() / self._batches}
