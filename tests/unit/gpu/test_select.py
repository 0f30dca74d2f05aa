from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.nvml.scenario import Scenario, gpu_uuid, mig_uuid
from scalewise.gpu.nvml import GpuDevice, open_nvml
from scalewise.gpu.select import GpuNotFound, select_gpus, visible_devices

Use = Callable[[Scenario], Path]


def _gpus(count: int) -> list[GpuDevice]:
    return [GpuDevice(i, gpu_uuid(i), "NVIDIA A10G", 24_576, 300, None) for i in range(count)]


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, [gpu_uuid(0), gpu_uuid(1), mig_uuid(2, 3)]),
        ("1,0", [gpu_uuid(1), gpu_uuid(0)]),
        (gpu_uuid(1), [gpu_uuid(1)]),
        (f"{mig_uuid(2, 5)}", [mig_uuid(2, 5)]),
        (f"MIG-{gpu_uuid(2)}/5/0", [mig_uuid(2, 5)]),
        ("", []),
        ("-1", []),
        ("0,7,1", [gpu_uuid(0)]),
        ("0,0", []),
        ("GPU-0", []),  # the beginning of more than one
    ],
)
def test_cuda_visible_devices(fake_nvml: Use, variable: str | None, expected: list[str]) -> None:
    fake_nvml(Scenario().h200(3).mig(2, 3).mig(2, 5))
    env = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    with open_nvml() as nvml:
        assert [d.uuid for d in visible_devices(nvml, env)] == expected


def test_gpus_are_selected_by_index_and_uuid_in_the_order_asked() -> None:
    gpus = _gpus(4)
    assert select_gpus(gpus, "all") == tuple(gpus)
    assert [d.index for d in select_gpus(gpus, [3, gpu_uuid(1)])] == [3, 1]


def test_a_gpu_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(GpuNotFound) as error:
        select_gpus(_gpus(2), [0, 5])
    message = str(error.value)
    assert message == (f"GPU 5 is not on this host; it has 0 ({gpu_uuid(0)}), 1 ({gpu_uuid(1)})")
    with pytest.raises(GpuNotFound, match="none that this process may use"):
        select_gpus([], [0])
    with pytest.raises(GpuNotFound, match="twice"):
        select_gpus(_gpus(2), [0, gpu_uuid(0)])
