"""The command line of an examination, and a measurement that fails."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from fakes.nvml.scenario import Scenario, gpu_uuid
from scalewise.doctor import Plan, examination, worker
from scalewise.doctor.examination import _environment, find_devices
from scalewise.doctor.host_facts import describe_devices, host_facts, pcie_link
from scalewise.doctor.worker import Examination
from scalewise.gpu import HostMismatch, open_nvml
from scalewise.host import usable_cores
from scalewise.records import DeviceInfo, GemmRate, PairLink, PcieLink


def test_gpus_that_the_host_lacks_are_one_line() -> None:
    """In a process of its own: other tests leave a fake driver in this one."""
    command = [sys.executable, "-m", "scalewise", "doctor", "--gpus", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: hardware.gpus: found [2]; allowed: all")
    assert done.stderr.count("\n") == 1


def test_one_measurement_that_fails_is_missing_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = worker.gemm_rate

    def fails_for_bf16(device: object, precision: str, budget_s: float) -> GemmRate:
        if precision == "bf16":
            raise RuntimeError("cuBLAS has no opinion\nand a stack")
        return real(device, precision, 0.01)  # type: ignore[arg-type]

    monkeypatch.setattr(worker, "gemm_rate", fails_for_bf16)
    device = DeviceInfo("cpu", "Xeon")
    examination = Examination(Plan(quick=True), tmp_path, 0, 1, device)
    assert examination.connected and examination.run() == 0
    found = examination.record.found
    assert found.missing["gemm bf16"] == "RuntimeError: cuBLAS has no opinion ..."
    assert [g.precision for g in found.gemm] == ["fp32"] and found.launch and found.copies
    assert "they need two devices" in found.missing["collectives and pairs"]
    told = [examination.team.all_agree(one) for one in (True, False)]
    assert (told, examination.team.largest([2.0, 1.0])) == ([True, False], [2.0, 1.0])
    assert found.stage == "done" and found.seconds.keys() >= {"launches", "copies"}


def test_a_rank_finds_its_devices_its_threads_and_this_very_package() -> None:
    slots = [DeviceInfo("cuda", "NVIDIA H200", f"GPU-{i}", i, (0, 1, 2)) for i in range(2)]
    found = _environment(slots, 1, 4000)
    assert (found["RANK"], found["WORLD_SIZE"], found["MASTER_PORT"]) == ("1", "2", "4000")
    assert (found["CUDA_VISIBLE_DEVICES"], found["OMP_NUM_THREADS"]) == ("GPU-0,GPU-1", "3")
    assert (Path(found["PYTHONPATH"].split(":")[0]) / "scalewise" / "doctor").is_dir()


def test_a_cpu_is_divided_into_the_devices_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    discover = Mock(return_value=Mock(slots=[DeviceInfo("cpu", "Xeon")]))
    monkeypatch.setattr(examination, "discover", discover)
    monkeypatch.setattr(examination, "usable_cores", lambda: range(9))
    for count in (None, 1):
        assert find_devices(count, None) is discover.return_value
    with pytest.raises(HostMismatch, match="found 4; allowed: 1 to 1"):
        find_devices(4, None)
    asked = [call.args[0].cores_per_device for call in discover.call_args_list]
    assert asked == [None, None, 9, None, 2]


# Facts of a host, from the kernel's files as it writes them and from the fake driver.
def test_a_told_host_has_nothing_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Mock(total=2**33, available=3 * 2**30)
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    for path, text in {
        "proc/pressure/cpu": "some avg10=52.16 avg60=37.09 total=3\nfull avg10=1.00 total=0\n",
        "sys/devices/system/node/node10/cpulist": "4-5\n",
        "sys/devices/system/node/node0/cpulist": "0-2,8\n",
        "sys/devices/system/node/node2/cpulist": "\n",
        f"sys/devices/system/cpu/cpu{usable_cores()[0]}/cpufreq/scaling_governor": "performance\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    facts = host_facts(tmp_path)
    assert not facts.missing
    assert (facts.cpu_governor, facts.cpu_pressure_percent) == ("performance", 52.16)
    nodes = [(node.node, node.cores) for node in facts.numa_nodes]
    assert nodes == [(0, (0, 1, 2, 8)), (2, ()), (10, (4, 5))]
    assert (facts.memory_total_mib, facts.memory_available_mib) == (8192, 3072)
    assert facts.shm_total_mib >= facts.shm_free_mib


def test_facts_that_the_kernel_does_not_tell_are_none_with_a_reason(tmp_path: Path) -> None:
    facts = host_facts(tmp_path, {"NCCL_P2P_DISABLE": "1", "PASSWORD": "x"})
    assert (facts.numa_nodes, facts.cpu_governor, facts.cpu_pressure_percent) == ((), None, None)
    assert {"numa_nodes", "cpu_governor", "cpu_pressure"} <= facts.missing.keys()
    assert facts.environment == {"NCCL_P2P_DISABLE": "1"}, "nothing else leaves the host"


def test_facts_and_links_of_gpus_come_from_nvml(fake_nvml: Callable[[Scenario], Path]) -> None:
    fake_nvml(Scenario().h200(2).add("process 0 4242 5120").value(0, "ecc_uncorrected", 3))
    slots = [DeviceInfo("cuda", "NVIDIA H200", gpu_uuid(i), i) for i in range(2)]
    (first, second), (link,) = describe_devices(slots)
    assert (first.other_processes, first.ecc_uncorrected, second.other_processes) == (1, 3, 0)
    assert (second.near_cores, (link.first, link.second, link.kind)) == ((2, 3), (0, 1, "NV18"))
    gone = DeviceInfo("cuda", "NVIDIA H200", "GPU-gone", 7)
    (_, stranger), (unknown,) = describe_devices([slots[0], gone])
    assert unknown == PairLink(0, 1, None, None)
    assert stranger.missing == {"nvml": "NVML does not show GPU-gone"}
    with open_nvml() as nvml:
        assert pcie_link(nvml, nvml.devices()[0]) == PcieLink(None, None, None, None)
