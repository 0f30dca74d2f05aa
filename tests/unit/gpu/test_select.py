from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.nvml.scenario import Scenario, gpu_uuid, mig_uuid
from scalewise.gpu import open_nvml
from scalewise.gpu.leases import visible_devices

Use = Callable[[Scenario], Path]


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
