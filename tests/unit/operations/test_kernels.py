"""The Triton kernels give what PyTorch's operators give. Needs a GPU."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch

from scalewise.datasets.synthetic import PointClouds, SensorStreams
from scalewise.operations.contract import Mode
from scalewise.operations.sensors import Fusion, Voxelize

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def on_gpu(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.cuda()
    return tuple(on_gpu(part) for part in batch)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_fusion(dtype: str) -> None:
    data = SensorStreams([5, 130, 1], [7, 300, 2], targets=9, samples=4, dtype=dtype)
    batch = on_gpu(data.train.__getitems__([2, 0, 3]))
    torch.testing.assert_close(Fusion("triton")(batch), Fusion("batched")(batch))


@pytest.mark.parametrize("mode", get_args(Mode))
@pytest.mark.parametrize("features", [1, 3, 8])
def test_voxel(mode: Mode, features: int) -> None:
    data = PointClouds(points=5000, features=features, spread=1.5, samples=3)
    batch = on_gpu(data.train.__getitems__([2, 0]))
    grid: dict[str, Any] = {
        "grid_minimum": (-2, -1, -2),
        "voxel_size": 0.3,
        "grid_shape": (13, 7, 16),
    }
    kernels, batched = (
        Voxelize(mode, **grid, implementation="triton").cuda(),
        Voxelize(mode, **grid, implementation="batched").cuda(),
    )
    torch.testing.assert_close(kernels(batch), batched(batch))
    assert kernels.counts() == batched.counts()
    assert kernels.counts()["points_dropped_per_batch"] > 0
