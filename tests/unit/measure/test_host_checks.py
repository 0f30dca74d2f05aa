"""What the kernel's files say, from files written as it writes them."""

from __future__ import annotations

from pathlib import Path

from scalewise.doctor import host_facts


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_cpu_lists() -> None:
    assert host_facts.parse_cpu_list("0-2,8\n") == (0, 1, 2, 8)
    assert host_facts.parse_cpu_list("\n") == (), "a node with memory alone"


def test_numa_nodes_come_in_order(tmp_path: Path) -> None:
    for node, cores in ((10, "4-5"), (0, "0-3"), (2, "")):
        _write(tmp_path / f"node{node}" / "cpulist", f"{cores}\n")
    found = host_facts.numa_nodes(tmp_path)
    assert [(n.node, n.cores) for n in found] == [(0, (0, 1, 2, 3)), (2, ()), (10, (4, 5))]


def test_pressure_is_that_of_some_task_over_ten_seconds(tmp_path: Path) -> None:
    text = "some avg10=52.16 avg60=37.09 avg300=1 total=3\nfull avg10=1.00 avg60=0 avg300=0 total=0"
    assert host_facts.cpu_pressure_percent(_write(tmp_path / "cpu", text)) == 52.16
    assert host_facts.cpu_pressure_percent(tmp_path / "absent") is None


def test_memory_is_read_in_kib(tmp_path: Path) -> None:
    path = _write(tmp_path / "meminfo", "MemTotal:  2097152 kB\nMemAvailable: 1024 kB\n")
    assert host_facts.memory_mib(path) == (2048, 1)
    assert host_facts.memory_mib(_write(tmp_path / "odd", "MemTotal: many\n")) is None


def test_shared_memory_of_a_folder_that_is_not_there_is_not_known(tmp_path: Path) -> None:
    assert host_facts.shm_mib(tmp_path / "absent") is None
    size, free = host_facts.shm_mib(tmp_path) or (0, 0)
    assert size >= free > 0


def test_what_the_kernel_does_not_tell_is_none_with_a_reason(tmp_path: Path) -> None:
    facts = host_facts.host_facts(tmp_path, {"NCCL_P2P_DISABLE": "1", "PASSWORD": "x"})
    assert facts.numa_nodes == () and facts.cpu_governor is None
    assert facts.memory_total_mib is None and facts.cpu_pressure_percent is None
    assert {"memory", "numa_nodes", "cpu_governor", "cpu_pressure"} <= facts.missing.keys()
    assert facts.environment == {"NCCL_P2P_DISABLE": "1"}, "nothing else leaves the host"


def test_a_told_host_has_nothing_missing(tmp_path: Path) -> None:
    _write(tmp_path / "proc/meminfo", "MemTotal: 4096 kB\nMemAvailable: 1024 kB\n")
    _write(tmp_path / "proc/pressure/cpu", "some avg10=0.00 avg60=0 avg300=0 total=0\n")
    _write(tmp_path / "sys/devices/system/node/node0/cpulist", "0-1\n")
    first = host_facts.host_facts(tmp_path).usable_cores[0]
    governor = f"sys/devices/system/cpu/cpu{first}/cpufreq/scaling_governor"
    _write(tmp_path / governor, "performance\n")
    facts = host_facts.host_facts(tmp_path)
    assert not facts.missing
    assert (facts.cpu_governor, facts.cpu_pressure_percent) == ("performance", 0.0)
