"""Fusion against NumPy, voxels against a plain loop over points."""

import math
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from scalewise.datasets.synthetic import PointClouds, SensorStreams
from scalewise.operations import Operation
from scalewise.operations.sensors import Fusion, Mode, Voxelize, interpolate


def plain_interpolation(stream: Tensor, times: Tensor, targets: Tensor) -> Tensor:
    result = torch.empty(len(stream), targets.shape[1], stream.shape[2])
    for row, feature in np.ndindex(len(stream), stream.shape[2]):
        values = stream[row, :, feature].float()
        result[row, :, feature] = torch.tensor(np.interp(targets[row], times[row], values))
    return result.to(stream.dtype)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_fused_streams_are_what_numpy_interpolates(dtype: str) -> None:
    data = SensorStreams([5, 12, 1], [7, 3, 2], targets=9, samples=4, dtype=dtype)
    streams, times, targets = data.train.__getitems__([2, 0, 3])
    moved = [each * each.shape[1] - torch.arange(each.shape[1]) for each in (*times, targets)]
    assert 0.2 < torch.cat([*map(torch.flatten, moved)]).abs().max() <= 1 / 3
    fused = Fusion()((streams, times, targets))
    assert (fused.shape, fused.dtype) == ((3, 9, 12), streams[0].dtype)
    expected = [plain_interpolation(s, t, targets) for s, t in zip(streams, times, strict=True)]
    torch.testing.assert_close(fused, torch.cat(expected, dim=-1))


def test_the_ends_are_held_and_two_samples_at_one_time_give_no_nan() -> None:
    stream = torch.tensor([[[1.0], [3.0]]])
    times = torch.tensor([[0.0, 1.0]])
    targets = torch.tensor([[-5.0, 0.0, 0.25, 1.0, 9.0]])
    assert interpolate(stream, times, targets).flatten().tolist() == [1.0, 1.0, 1.5, 3.0, 3.0]
    stream = torch.tensor([[[1.0], [2.0], [4.0]]])
    times = torch.tensor([[0.0, 1.0, 1.0]])
    result = interpolate(stream, times, torch.tensor([[0.5, 1.0, 2.0]]))
    assert result.isfinite().all()
    assert result[0, 0, 0] == 1.5


MINIMUM, VOXEL_SIZE, SHAPE = (-1.0, -2.0, -0.5), 0.25, (8, 16, 4)


def plain_grid(points: Tensor, features: Tensor, mode: Mode) -> tuple[Tensor, int]:
    held: dict[tuple[int, ...], list[Tensor]] = {}
    dropped = 0
    for cloud, rows in enumerate(points.tolist()):
        for number, point in enumerate(rows):
            place = [math.floor((p - m) / VOXEL_SIZE) for p, m in zip(point, MINIMUM, strict=True)]
            if all(0 <= i < n for i, n in zip(place, SHAPE, strict=True)):
                held.setdefault((cloud, *place), []).append(features[cloud, number])
            else:
                dropped += 1
    shape = (len(points), *SHAPE)
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
    return Voxelize(mode, MINIMUM, VOXEL_SIZE, SHAPE)


@pytest.mark.parametrize("mode", get_args(Mode))
def test_voxels_are_what_a_plain_loop_gives_and_compile_once_and_whole(mode: Mode) -> None:
    data = PointClouds(points=400, features=3, spread=1.0, samples=4)
    operation, counter, missed = voxelize(mode), CompileCounter(), []
    compiled = torch.compile(operation, backend=counter, fullgraph=True, dynamic=False)
    for run, samples in ((operation, [2, 0]), (compiled, [2, 0]), (compiled, [1, 3])):
        points, features = data.train.__getitems__(samples)
        expected, dropped = plain_grid(points, features, mode)
        assert 0 < dropped < 800
        torch.testing.assert_close(run((points, features)), expected)
        missed.append(dropped)
        assert operation.counts() == {"points_dropped_per_batch": np.mean(missed)}
    assert counter.frame_count == 1, "not anew in each step"


def test_all_below_zero_is_not_taken_for_empty() -> None:
    points = torch.tensor([[[0.1, 0.1, 0.1], [0.12, 0.1, 0.1]]])
    result = voxelize("max")((points, torch.tensor([[[-3.0], [-2.0]]])))
    assert (result.min(), (result != 0).sum()) == (-2.0, 1)


def test_borders_belong_to_the_voxel_they_open() -> None:
    points = torch.tensor([[[-1.0, -2.0, -0.5], [1.0, 0.0, 0.0], [-1.01, 0.0, 0.0]]])
    voxel, inside = voxelize("count").voxel_of(points)
    assert inside.tolist() == [[True, False, False]]
    assert voxel.tolist() == [[0, 8 * 16 * 4, 8 * 16 * 4]]


def test_what_is_no_number_is_dropped_and_nothing_run_counts_nothing() -> None:
    points = torch.tensor([[[math.nan, 0.0, 0.0], [math.inf, 0.0, 0.0], [0.0, 0.0, 0.0]]])
    operation = voxelize("count")
    assert isinstance(operation, Operation) and isinstance(Fusion(), Operation)
    assert (operation.counts(), operation((points, torch.zeros(1, 3, 1))).sum()) == ({}, 1)
    assert operation.counts() == {"points_dropped_per_batch": 2}


def test_ranges() -> None:
    with pytest.raises(ValueError, match=r"^voxel_size: found 0; allowed: above 0$"):
        Voxelize(voxel_size=0)
    with pytest.raises(ValueError, match=r"^grid_shape: found"):
        Voxelize(grid_shape=(4, 0, 4))
    assert Voxelize(grid_shape=(1, 1, 1)).shape == (1, 1, 1)
