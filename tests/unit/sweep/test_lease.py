"""Who has which device: widths of any mix, nobody twice, and locks that die with their holder."""

from pathlib import Path

import pytest

from fakes.nvml.fixture import FakeNvml
from fakes.nvml.scenario import Scenario, gpu_uuid
from fakes.requests import asked
from scalewise.config import HardwareConfig
from scalewise.gpu import Host, HostMismatch, Leases, discover, units
from scalewise.gpu import leases as leases_module
from scalewise.records import DeviceInfo
from scalewise.sweep.preflight import ThisHost, devices_for, explain_differences

GPUS = [DeviceInfo("cuda", "a GPU", gpu_uuid(i), i) for i in range(4)]
CORES = [DeviceInfo("cpu", "a CPU", cores=(i,)) for i in range(4)]


def test_jobs_of_mixed_width_share_the_host() -> None:
    leases = Leases()
    assert leases.try_lease(GPUS, 5) is None, "and it takes nothing"
    wide, narrow = leases.try_lease(GPUS, 3), leases.try_lease(GPUS, 1)
    assert ([s.index for s in wide.slots], [s.index for s in narrow.slots]) == ([0, 1, 2], [3])
    assert leases.try_lease(GPUS, 1) is None
    leases.release(wide)
    assert leases.try_lease(GPUS, 4) is None
    assert [s.index for s in leases.try_lease(GPUS, 2).slots] == [0, 1]


def test_shares_of_the_same_cores_exclude_one_another() -> None:
    whole = [DeviceInfo("cpu", "a CPU", cores=(0, 1))]
    ours, theirs = Leases(), Leases()
    held = ours.try_lease(whole, 1)
    assert held is not None
    assert units(whole[0]) == ("cpu-0", "cpu-1")
    for other, core in ((ours, 2), (theirs, 3)):
        assert other.try_lease(CORES, 1).slots[0].cores == (core,)
    ours.release(held)
    assert theirs.try_lease(whole, 1) is not None


def test_a_cpu_device_is_the_same_share_for_one_and_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_module, "usable_cores", lambda: (2, 3, 5, 7, 8))
    assert [slot.cores for slot in discover(HardwareConfig("cpu", "cpu")).slots] == [(2, 3), (5, 7)]
    with pytest.raises(HostMismatch, match=r"hardware\.cores_per_device: found 6; allowed: 1 to 5"):
        discover(HardwareConfig("cpu", "cpu", cores_per_device=6))


def test_a_host_has_its_gpus_and_how_they_are_linked(fake_nvml: FakeNvml) -> None:
    fake_nvml(Scenario().h200(4))
    everything = discover(HardwareConfig("auto"))
    assert [slot.uuid for slot in everything.slots] == [gpu_uuid(i) for i in range(4)]
    assert everything.topology["0-1"].startswith("NV")
    host = ThisHost()
    assert (host.slots(), host.devices_of(HardwareConfig("auto")), host.slots()) == (None, 4, 4)


def test_cores_of_gpus_are_shared_out_and_bound_to_the_near_ones() -> None:
    from scalewise.gpu import GpuDevice

    fields = dict.fromkeys(GpuDevice.__dataclass_fields__)
    near = [
        GpuDevice(**{**fields, "index": i, "uuid": gpu_uuid(i), "name": "a", "cores": cores})
        for i, cores in enumerate([(0, 1, 2, 3), (0, 1, 2, 3), (), (99,)])
    ]
    slots = leases_module.gpu_slots(near, (0, 1, 2, 3))
    assert [slot.cores for slot in slots] == [(0, 1), (2, 3), (0, 1, 2, 3), (0, 1, 2, 3)]


SMALL = Host((DeviceInfo("cuda", "a GPU", "u0", memory_total_mib=16_376.0),), None, {})
CPU = Host((DeviceInfo("cpu", "some CPU", cores=(0,)),), None, {})


def gpus(count: int) -> Host:
    return Host(tuple(DeviceInfo("cuda", "a GPU", f"u{i}") for i in range(count)), None, {})


def test_a_cell_takes_all_devices_or_those_it_names() -> None:
    assert devices_for(asked("strategy=ddp"), gpus(4)) == 4
    assert devices_for(asked("strategy=ddp", "strategy.devices=2"), gpus(4)) == 2
    assert devices_for(asked("hardware.memory_cap_gib=15"), SMALL) == 1


@pytest.mark.parametrize(
    ("overrides", "host", "refusal"),
    [
        ("strategy=ddp", gpus(1), "strategy.devices: found 2 with strategy=ddp; allowed: at most"),
        ("strategy=ddp strategy.devices=16", gpus(8), "strategy.devices: found 16 with strategy"),
        ("devices=16", gpus(8), "devices: found 16 with strategy=ddp; allowed: at most 8"),
        ("precision=fp16-mixed", CPU, "precision: found fp16-mixed, which needs a GPU"),
        ("profile.nvtx=true", CPU, "profile.nvtx: found true, which needs a GPU"),
        ("execution=cudagraph", CPU, "execution: found cudagraph, which needs a GPU"),
        ("execution=compile", gpus(1), "execution: found compile, which needs a C++ compiler"),
        ("hardware.memory_cap_gib=12", CPU, "hardware.memory_cap_gib: found 12.0, which"),
    ],
)
def test_what_a_host_cannot_do_is_refused_and_not_replaced(
    overrides: str, host: Host, refusal: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(HostMismatch) as refused:
        devices_for(asked(*overrides.split()), host)
    assert str(refused.value).startswith(refusal)


def test_compiling_needs_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert devices_for(asked("execution=compile"), gpus(1)) == 1


# A host with GPUs of several kinds: each cell has the kind it names.
H100, A10G = "NVIDIA H100 80GB HBM3", "NVIDIA A10G"


def mixed() -> Scenario:
    """GPUs 0 and 1 are H100, 2 and 3 A10G."""
    scenario = Scenario()
    for index, name in enumerate((H100, H100, A10G, A10G)):
        scenario.gpu(index, 81920, name)
    return scenario


def test_each_kind_of_gpu_is_found_by_its_profile_and_the_rest_is_told(fake_nvml: FakeNvml) -> None:
    fake_nvml(mixed())
    cells, here = [asked(f"hardware={gpu}").cell for gpu in ("h100", "a10g")], ThisHost()
    hosts = [here.of(cell.hardware) for cell in cells]
    found = [[slot.uuid for slot in host.slots] for host in hosts]
    assert found == [[gpu_uuid(0), gpu_uuid(1)], [gpu_uuid(2), gpu_uuid(3)]]
    said = [*explain_differences(cells[1], 1, hosts[1])]
    assert f"hardware=a10g leaves out GPU 0 ({H100}), GPU 1 ({H100})" in said


@pytest.mark.parametrize(
    ("typed", "devices", "told"),
    [
        ("strategy=ddp", 4, [f"{A10G}, {H100}"]), ("strategy=ddp", 2, []),
        ("strategy=ddp hardware.gpus=[1,2]", 2, [f"{A10G}, {H100}"]),
        ("strategy=heterogeneous strategy.shares=[0.3,0.3,0.2,0.1995]", 4, []),
        ("precision=tf32", 1, []), ("precision=tf32 hardware=cpu", 1, ["a CPU has no TF32"]),
        ("hardware=cpu", 1, []),
    ],
)  # fmt: skip
def test_what_a_host_does_otherwise_is_told(
    fake_nvml: FakeNvml, typed: str, devices: int, told: list[str]
) -> None:
    fake_nvml(mixed())
    cell = asked("tracking=none", *typed.split()).cell
    lines = [*explain_differences(cell, devices, ThisHost().of(cell.hardware))]
    assert len(lines) == len(told)
    assert all(words in line for words, line in zip(told, lines, strict=True))


def test_a_host_of_divided_gpus_has_none_and_says_why(fake_nvml: FakeNvml) -> None:
    fake_nvml(Scenario().h200(1).mig(0))
    found = ThisHost().of(asked("tracking=none").cell.hardware)
    assert {slot.kind for slot in found.slots} == {"cpu"}
    assert "MIG mode" in (found.no_gpu or "")
