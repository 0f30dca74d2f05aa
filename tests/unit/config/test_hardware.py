"""A profile against the host: every refusal names what was found and what is allowed."""

import re
from dataclasses import replace
from typing import Any

import pytest

from scalewise.config import DdpConfig, HardwareConfig, choose_gpus, cpu_devices, device_kind
from scalewise.config.hardware import PeakRates, check_nccl, nccl_warnings
from scalewise.records import DeviceInfo


def gpus(count: int, name: str = "NVIDIA A10G") -> list[DeviceInfo]:
    return [DeviceInfo("cuda", name, uuid=f"GPU-{i:04x}", index=i) for i in range(count)]


H100 = HardwareConfig(
    "h100", kind="cuda", match=("H100 80GB HBM3",),
    peak=PeakRates("data sheet", "2024", bf16_tflops=989.5), memory_gib=80.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("config", "chosen"),
    [
        (H100, [1, 0]),  # of a host of several kinds its own
        (replace(H100, allow_mismatch=True), [3, 2, 1, 0]),
        (HardwareConfig("auto", gpus=(3, "GPU-0001")), [3, 1]),  # in the order given
    ],
)
def test_a_profile_chooses_its_gpus(config: HardwareConfig, chosen: list[int]) -> None:
    present = [*reversed(gpus(4)[2:]), *reversed(gpus(2, "NVIDIA H100 80GB HBM3"))]
    assert [gpu.index for gpu in choose_gpus(config, present)] == chosen


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (H100, "hardware=h100: found NVIDIA A10G; allowed: GPUs named H100 80GB HBM3"),
        (replace(H100, gpus=(0, 2)), "hardware=h100: found NVIDIA A10G; allowed: GPUs named"),
        (HardwareConfig("auto", gpus=(4,)), "hardware.gpus: found 4; allowed: 0, 1, 2, 3"),
        (HardwareConfig("auto", gpus=("GPU-beef",)), "hardware.gpus: found 'GPU-beef'; "),
        (HardwareConfig("auto", gpus=(1, "GPU-0001")), "hardware.gpus: found [1, 'GPU-0001']; "),
    ],
)
def test_gpus_that_cannot_be_used_are_refused(config: HardwareConfig, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}.*$"):
        choose_gpus(config, gpus(4))


@pytest.mark.parametrize(
    ("kind", "present", "expected"),
    [("auto", 0, "cpu"), ("auto", 1, "cuda"), ("cpu", 2, "cpu"), ("cuda", 1, "cuda")],
)
def test_device_kind(kind: Any, present: int, expected: str) -> None:
    assert device_kind(HardwareConfig("x", kind=kind), gpus(present)) == expected
    with pytest.raises(ValueError, match="hardware=h100: found no NVIDIA GPU on this host"):
        device_kind(H100, [])


@pytest.mark.parametrize(
    ("cores", "share", "expected"),
    [
        ([0, 1], None, [(0,), (1,)]), ([4], None, [(4,)]),
        ([0, 1, 2, 3, 4], None, [(0, 1), (2, 3)]),
        ([0, 1, 2, 3], 1, [(0,), (1,), (2,), (3,)]), ([0, 1, 2, 3], 4, [(0, 1, 2, 3)]),
    ],
)  # fmt: skip
def test_cpu_devices_are_equal_shares(
    cores: list[int], share: int | None, expected: list[tuple[int, ...]]
) -> None:
    assert cpu_devices(HardwareConfig("cpu", cores_per_device=share), cores) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"NCCL_NTHREADS": 16}, r"nccl\.NCCL_NTHREADS: found 16; allowed: 64 \| 128 \| 256 \| 512"),
        ({"NCCL_ALGO": "Treee"}, r"nccl\.NCCL_ALGO: found 'Treee'; allowed: Tree \| Ring"),
        ({"NCCL_PROTO": "allreduce:LL256"}, r"nccl\.NCCL_PROTO: found 'allreduce:LL256'"),
        ({"NCCL_P2P_DISABLE": "yes"}, r"nccl\.NCCL_P2P_DISABLE: found 'yes'; allowed: 0 \| 1"),
        ({"NTHREADS": 64}, r"nccl: found 'NTHREADS'; allowed: names of NCCL_\*.*NCCL_NTHREADS"),
    ],
)
def test_illegal_nccl_values_are_refused(settings: dict[str, str | int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_nccl(settings)


@pytest.mark.parametrize(
    ("value", "warned"),
    [
        ("Tree", True), ("tree", True),
        ("tree,ring", False), ("^NVLS", False),
        ("allreduce:tree;broadcast:ring", False), ("ring;allreduce:^tree", False),
    ],
)  # fmt: skip
def test_algorithm_lists_are_legal_and_a_bare_tree_is_warned_of(value: str, warned: bool) -> None:
    check_nccl({"NCCL_ALGO": value})
    assert bool(nccl_warnings({"NCCL_ALGO": value})) == warned


def test_the_backend_follows_the_device() -> None:
    config = DdpConfig("ddp", "ddp")
    assert (config.backend_for("cuda"), config.backend_for("cpu")) == ("nccl", "gloo")
    with pytest.raises(ValueError, match=r"strategy\.backend: found nccl on a CPU host"):
        DdpConfig("ddp", "ddp", backend="nccl").backend_for("cpu")
    assert DdpConfig("ddp", "ddp", backend="nccl").backend_for("cuda") == "nccl"
