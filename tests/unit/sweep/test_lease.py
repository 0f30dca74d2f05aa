"""Who has which device: widths of any mix, nobody twice, and locks that die with their holder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fakes.nvml.fixture import fake_nvml  # noqa: F401 - a fixture
from fakes.nvml.scenario import Scenario, gpu_uuid
from scalewise.config import DdpConfig, HardwareConfig, PrecisionConfig, StrategyConfig
from scalewise.gpu import Host, HostMismatch, Leases, discover, units
from scalewise.gpu import leases as leases_module
from scalewise.records import DeviceInfo
from scalewise.sweep import preflight
from scalewise.sweep.preflight import check_precision

GPUS = [DeviceInfo("cuda", "a GPU", gpu_uuid(i), i) for i in range(4)]
CORES = [DeviceInfo("cpu", "a CPU", cores=(i,)) for i in range(4)]


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SCALEWISE_RUNTIME_DIR", str(tmp_path / "runtime"))
    return tmp_path / "runtime"


def test_jobs_of_mixed_width_share_the_host() -> None:
    leases = Leases()
    wide, narrow = leases.try_lease(GPUS, 3), leases.try_lease(GPUS, 1)
    assert wide is not None
    assert narrow is not None
    assert [s.index for s in wide.slots] == [0, 1, 2]
    assert [s.index for s in narrow.slots] == [3]
    assert leases.try_lease(GPUS, 1) is None
    leases.release(wide)
    assert leases.try_lease(GPUS, 4) is None
    again = leases.try_lease(GPUS, 2)
    assert again is not None
    assert [s.index for s in again.slots] == [0, 1]


def test_a_lease_that_does_not_fit_takes_nothing() -> None:
    leases = Leases()
    assert leases.try_lease(GPUS, 5) is None
    assert leases.try_lease(GPUS, 4) is not None


def test_shares_of_the_same_cores_exclude_one_another() -> None:
    whole = [DeviceInfo("cpu", "a CPU", cores=(0, 1))]
    ours, theirs = Leases(), Leases()
    held = ours.try_lease(whole, 1)
    assert held is not None
    assert units(whole[0]) == ("cpu-0", "cpu-1")
    for other, core in ((ours, 2), (theirs, 3)):
        taken = other.try_lease(CORES, 1)
        assert taken is not None
        assert taken.slots[0].cores == (core,)
    ours.release(held)
    assert theirs.try_lease(whole, 1) is not None


def test_a_lock_dies_with_its_holder() -> None:
    script = (
        "from scalewise.gpu import Leases; from scalewise.records import DeviceInfo;"
        f"held = Leases().try_lease([DeviceInfo('cuda', 'a', {gpu_uuid(0)!r}, 0)], 1);"
        "print(held is not None, flush=True); input()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder:
        assert holder.stdout.readline() == b"True\n"
        assert Leases().try_lease(GPUS[:1], 1) is None
        holder.kill()
        holder.wait()
        assert Leases().try_lease(GPUS[:1], 1) is not None


def test_a_cpu_device_is_the_same_share_for_one_rank_and_for_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases_module, "usable_cores", lambda: (2, 3, 5, 7, 8))
    host = discover(HardwareConfig("cpu", "cpu"))
    assert [slot.cores for slot in host.slots] == [(2, 3), (5, 7)]
    thirds = discover(HardwareConfig("cpu", "cpu", cores_per_device=1))
    assert [slot.cores for slot in thirds.slots] == [(2,), (3,), (5,), (7,), (8,)]
    with pytest.raises(HostMismatch, match=r"hardware\.cores_per_device: found 6; allowed: 1 to 5"):
        discover(HardwareConfig("cpu", "cpu", cores_per_device=6))


def test_gpus_are_chosen_by_index_or_uuid_and_checked(
    fake_nvml: Callable[[Scenario], Path],  # noqa: F811
) -> None:
    fake_nvml(Scenario().h200(4))
    everything = discover(HardwareConfig("auto"))
    assert [slot.uuid for slot in everything.slots] == [gpu_uuid(i) for i in range(4)]
    assert everything.topology["0-1"].startswith("NV")
    chosen = discover(HardwareConfig("auto", gpus=(3, gpu_uuid(1))))
    assert [slot.index for slot in chosen.slots] == [3, 1]
    with pytest.raises(HostMismatch, match=r"hardware\.gpus: found 4; allowed: 0, 1, 2, 3, or"):
        discover(HardwareConfig("auto", gpus=(4,)))
    with pytest.raises(HostMismatch, match=r"hardware=a10g: found NVIDIA H200; allowed: GPUs"):
        discover(HardwareConfig("a10g", "cuda", match=("A10G",)))


def test_cores_of_gpus_are_shared_out_and_bound_to_the_near_ones() -> None:
    from scalewise.gpu import GpuDevice

    fields = dict.fromkeys(GpuDevice.__dataclass_fields__)
    near = [
        GpuDevice(**{**fields, "index": i, "uuid": gpu_uuid(i), "name": "a", "cores": cores})
        for i, cores in enumerate([(0, 1, 2, 3), (0, 1, 2, 3), (), (99,)])
    ]
    slots = leases_module.gpu_slots(near, (0, 1, 2, 3))
    assert [slot.cores for slot in slots] == [(0, 1), (2, 3), (0, 1, 2, 3), (0, 1, 2, 3)]


def test_width_asks_for_no_more_than_there_is() -> None:
    class Cell:
        strategy: StrategyConfig = DdpConfig("ddp", "ddp")

        def per_device_batch_size(self, devices: int) -> int:
            return 1

    cell = Cell()
    assert preflight.width(cell, 4) == 4  # type: ignore[arg-type]
    with pytest.raises(HostMismatch, match="needs two devices or more, and this host has 1"):
        preflight.width(cell, 1)  # type: ignore[arg-type]
    cell.strategy = replace(cell.strategy, devices=16)
    with pytest.raises(
        HostMismatch, match=r"strategy\.devices: found 16, but this host has 8 devices"
    ):
        preflight.width(cell, 8)  # type: ignore[arg-type]


def test_a_precision_the_cpu_cannot_do_is_refused_and_not_replaced() -> None:
    host = Host((DeviceInfo("cpu", "some CPU", cores=(0,)),), None, {})
    cell = SimpleNamespace(precision=PrecisionConfig("fp16-mixed", "16-mixed", False))
    with pytest.raises(HostMismatch, match="precision: found fp16-mixed, which needs a GPU"):
        check_precision(cast(Any, cell), host)


def test_fp8_needs_a_gpu_that_has_it_and_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = cast(
        Any, SimpleNamespace(precision=PrecisionConfig("fp8", "bf16-mixed", True, fp8=True))
    )

    def refusal(slot: DeviceInfo, *capability: int) -> str:
        known = {"u": capability} if capability else {}
        with pytest.raises(HostMismatch) as error:
            check_precision(cell, Host((slot,), None, {}, None, cast(Any, known)))
        return str(error.value)

    assert refusal(DeviceInfo("cpu", "some CPU")) == (
        "precision: found fp8, which needs a GPU of compute capability 8.9 or higher; allowed "
        "here: bf16-mixed or fp32"
    )
    assert "or higher, and an A100 has 8.0; allowed here" in refusal(
        DeviceInfo("cuda", "an A100", "u"), 8, 0
    )
    monkeypatch.setattr("scalewise.sweep.preflight.find_spec", lambda name: None)
    hopper = DeviceInfo("cuda", "an H100", "u")
    assert refusal(hopper, 9, 0) == (
        "precision: found fp8, which needs torchao; run pip install 'scalewise[fp8]', or use "
        "precision=bf16-mixed"
    )
    monkeypatch.setattr("scalewise.sweep.preflight.find_spec", lambda name: name)
    for known in ({"u": (9, 0)}, {"u": (8, 9)}, {}):
        check_precision(cell, Host((hopper,), None, {}, None, known))
