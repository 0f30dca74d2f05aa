"""Voxelization against a plain loop over points."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from scalewise.datasets.synthetic import PointClouds
from scalewise.operations import Operation
from scalewise.operations.sensors import Grid, Mode, Voxelize, voxel_of

GRID = Grid((-1.0, -2.0, -0.5), 0.25, (8, 16, 4))


def plain_grid(points: Tensor, features: Tensor, mode: Mode) -> tuple[Tensor, int]:
    held: dict[tuple[int, ...], list[Tensor]] = {}
    dropped = 0
    for cloud, rows in enumerate(points.tolist()):
        for number, point in enumerate(rows):
            place = [
                math.floor((p - m) / GRID.voxel_size)
                for p, m in zip(point, GRID.minimum, strict=True)
            ]
            if all(0 <= i < n for i, n in zip(place, GRID.shape, strict=True)):
                held.setdefault((cloud, *place), []).append(features[cloud, number])
            else:
                dropped += 1
    shape = (len(points), *GRID.shape)
    if mode in ("count", "occupancy"):
        result = torch.zeros(shape, dtype=torch.int32)
        for place, found in held.items():
            result[place] = len(found) if mode == "count" else 1
        return result, dropped
    result = torch.zeros(*shape, features.shape[2])
    for place, found in held.items():
        rows = torch.stack(found)
        result[place] = rows.mean(0) if mode == "mean" else rows.amax(0)
    return result, dropped


def voxelize(mode: Mode) -> Voxelize:
    return Voxelize(mode, GRID.minimum, GRID.voxel_size, GRID.shape)


@pytest.mark.parametrize("mode", get_args(Mode))
def test_it_is_what_a_plain_loop_gives(mode: Mode) -> None:
    data = PointClouds(points=400, features=3, spread=1.0, samples=3)
    points, features = data.train.__getitems__([2, 0])
    operation = voxelize(mode)
    result = operation((points, features))
    expected, dropped = plain_grid(points, features, mode)
    assert 0 < dropped < 800
    torch.testing.assert_close(result, expected)
    assert operation.counts() == {"points_dropped_per_batch": dropped}


@pytest.mark.parametrize("mode", get_args(Mode))
def test_it_compiles_once_and_whole(mode: Mode) -> None:
    counter = CompileCounter()
    operation = voxelize(mode)
    compiled = torch.compile(operation, backend=counter, fullgraph=True, dynamic=False)
    data = PointClouds(points=40, features=3, spread=1.0, samples=3)
    for sample in range(3):
        points, features = data.train.__getitems__([sample])
        expected, _ = plain_grid(points, features, mode)
        torch.testing.assert_close(compiled((points, features)), expected)
    assert counter.frame_count == 1, "not anew in each step"
    assert operation.counts()["points_dropped_per_batch"] > 0


def test_all_below_zero_is_not_taken_for_empty() -> None:
    points = torch.tensor([[[0.1, 0.1, 0.1], [0.12, 0.1, 0.1]]])
    result = voxelize("max")((points, torch.tensor([[[-3.0], [-2.0]]])))
    assert result.min() == -2.0
    assert (result != 0).sum() == 1


def test_borders_belong_to_the_voxel_they_open() -> None:
    points = torch.tensor([[[-1.0, -2.0, -0.5], [1.0, 0.0, 0.0], [-1.01, 0.0, 0.0]]])
    voxel, inside = voxel_of(points, GRID)
    assert inside.tolist() == [[True, False, False]]
    assert voxel.tolist() == [[0, GRID.voxels, GRID.voxels]]


def test_what_is_no_number_is_dropped() -> None:
    points = torch.tensor([[[math.nan, 0.0, 0.0], [math.inf, 0.0, 0.0], [0.0, 0.0, 0.0]]])
    operation = voxelize("count")
    assert operation((points, torch.zeros(1, 3, 1))).sum() == 1
    assert operation.counts() == {"points_dropped_per_batch": 2}


def test_nothing_run_counts_nothing() -> None:
    assert isinstance(voxelize("mean"), Operation)
    assert voxelize("mean").counts() == {}


def test_ranges() -> None:
    with pytest.raises(ValueError, match=r"^voxel_size: found 0; allowed: above 0$"):
        Voxelize(voxel_size=0)
    with pytest.raises(ValueError, match=r"^grid_shape: found"):
        Voxelize(grid_shape=(4, 0, 4))
