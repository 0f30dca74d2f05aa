"""Fusion against a plain loop over rows, targets and features."""

from __future__ import annotations

import bisect

import pytest
import torch
from torch import Tensor

from scalewise.datasets.synthetic import SensorStreams
from scalewise.operations import Operation
from scalewise.operations.sensors import Fusion, fuse, interpolate


def plain_interpolation(stream: Tensor, times: Tensor, targets: Tensor) -> Tensor:
    result = torch.empty(len(stream), targets.shape[1], stream.shape[2])
    for row in range(len(stream)):
        known = times[row].tolist()
        for place, at in enumerate(targets[row].tolist()):
            right = bisect.bisect_left(known, at)
            if right == 0:
                result[row, place] = stream[row, 0]
            elif right == len(known):
                result[row, place] = stream[row, -1]
            else:
                share = (at - known[right - 1]) / (known[right] - known[right - 1])
                before, after = stream[row, right - 1].float(), stream[row, right].float()
                result[row, place] = before + share * (after - before)
    return result.to(stream.dtype)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_it_is_what_a_plain_loop_gives(dtype: str) -> None:
    data = SensorStreams([5, 12, 1], [7, 3, 2], targets=9, samples=4, dtype=dtype)
    streams, times, targets = data.train.__getitems__([2, 0, 3])
    fused = fuse(streams, times, targets)
    assert fused.shape == (3, 9, 12)
    assert fused.dtype == streams[0].dtype
    expected = [plain_interpolation(s, t, targets) for s, t in zip(streams, times, strict=True)]
    torch.testing.assert_close(fused, torch.cat(expected, dim=-1))


def test_the_ends_are_held() -> None:
    stream = torch.tensor([[[1.0], [3.0]]])
    times = torch.tensor([[0.0, 1.0]])
    targets = torch.tensor([[-5.0, 0.0, 0.25, 1.0, 9.0]])
    assert interpolate(stream, times, targets).flatten().tolist() == [1.0, 1.0, 1.5, 3.0, 3.0]


def test_two_samples_at_one_time_give_no_nan() -> None:
    stream = torch.tensor([[[1.0], [2.0], [4.0]]])
    times = torch.tensor([[0.0, 1.0, 1.0]])
    result = interpolate(stream, times, torch.tensor([[0.5, 1.0, 2.0]]))
    assert result.isfinite().all()
    assert result[0, 0, 0] == 1.5


def test_it_is_an_operation() -> None:
    assert isinstance(Fusion(), Operation)
