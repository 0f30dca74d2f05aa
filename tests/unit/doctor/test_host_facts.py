"""Facts of a host, from the kernel's files as it writes them and from the fake driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.nvml.fixture import fake_nvml
from fakes.nvml.scenario import Scenario, gpu_uuid
from scalewise.doctor.host_facts import describe_devices, host_facts, pcie_link
from scalewise.gpu import NvmlError, open_nvml
from scalewise.host import usable_cores
from scalewise.records import DeviceInfo

__all__ = ["fake_nvml"]


def test_a_told_host_has_nothing_missing(tmp_path: Path) -> None:
    governor = f"sys/devices/system/cpu/cpu{usable_cores()[0]}/cpufreq/scaling_governor"
    for path, text in {
        "proc/pressure/cpu": "some avg10=52.16 avg60=37.09 total=3\nfull avg10=1.00 total=0\n",
        "sys/devices/system/node/node10/cpulist": "4-5\n",
        "sys/devices/system/node/node0/cpulist": "0-2,8\n",
        "sys/devices/system/node/node2/cpulist": "\n",
        governor: "performance\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    facts = host_facts(tmp_path)
    assert not facts.missing
    assert (facts.cpu_governor, facts.cpu_pressure_percent) == ("performance", 52.16)
    nodes = [(node.node, node.cores) for node in facts.numa_nodes]
    assert nodes == [(0, (0, 1, 2, 8)), (2, ()), (10, (4, 5))]
    assert facts.memory_total_mib is not None and facts.memory_available_mib is not None
    assert facts.memory_total_mib >= facts.memory_available_mib > 0
    assert facts.shm_total_mib is not None and facts.shm_free_mib is not None
    assert facts.shm_total_mib >= facts.shm_free_mib


def test_facts_that_the_kernel_does_not_tell_are_none_with_a_reason(tmp_path: Path) -> None:
    facts = host_facts(tmp_path, {"NCCL_P2P_DISABLE": "1", "PASSWORD": "x"})
    assert (facts.numa_nodes, facts.cpu_governor, facts.cpu_pressure_percent) == ((), None, None)
    assert {"numa_nodes", "cpu_governor", "cpu_pressure"} <= facts.missing.keys()
    assert facts.environment == {"NCCL_P2P_DISABLE": "1"}, "nothing else leaves the host"


def test_facts_and_links_of_gpus_come_from_nvml(fake_nvml: Callable[[Scenario], Path]) -> None:
    scenario = Scenario().h200(2).add("process 0 4242 5120").points(0, "ecc_uncorrected", {0: 3})
    fake_nvml(scenario)
    slots = [DeviceInfo("cuda", "NVIDIA H200", gpu_uuid(i), i) for i in range(2)]
    (first, second), (link,) = describe_devices(slots)
    assert (first.other_processes, first.ecc_uncorrected, second.other_processes) == (1, 3, 0)
    assert second.near_cores == (2, 3)
    assert (link.first, link.second, link.kind) == (0, 1, "NV18")
    (stranger,), _ = describe_devices([DeviceInfo("cuda", "NVIDIA H200", "GPU-gone", 7)])
    assert stranger.missing == {"nvml": "NVML does not show GPU-gone"}
    with open_nvml() as nvml, pytest.raises(NvmlError, match="does not answer"):
        pcie_link(nvml, "GPU-gone")
