"""What a process may use: affinity and cgroup limits of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scalewise import host


@pytest.fixture
def member_of(monkeypatch: pytest.MonkeyPatch) -> object:
    """Put this process into the cgroups of ``/proc/self/cgroup`` lines."""
    read = host._read

    def use(*lines: str) -> None:
        def fake(path: Path) -> str | None:
            return "\n".join(lines) if path == Path("/proc/self/cgroup") else read(path)

        monkeypatch.setattr(host, "_read", fake)

    return use


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_smallest_quota_on_the_way_up_counts(tmp_path: Path, member_of: object) -> None:
    member_of("0::/a/b")  # type: ignore[operator]
    put(tmp_path, "a/b/cpu.max", "400000 100000")
    put(tmp_path, "a/cpu.max", "150000 100000")
    put(tmp_path, "cpu.max", "max 100000")
    assert host.cpu_quota(tmp_path) == 1.5


def test_version_1_counts_too_and_minus_one_is_no_limit(tmp_path: Path, member_of: object) -> None:
    member_of("4:cpu,cpuacct:/job", "0::/")  # type: ignore[operator]
    put(tmp_path, "cpu,cpuacct/job/cpu.cfs_quota_us", "-1")
    put(tmp_path, "cpu,cpuacct/job/cpu.cfs_period_us", "100000")
    assert host.cpu_quota(tmp_path) is None
    put(tmp_path, "cpu,cpuacct/job/cpu.cfs_quota_us", "50000")
    assert host.cpu_quota(tmp_path) == 0.5


def test_a_quota_limits_the_cores_and_leaves_one(tmp_path: Path, member_of: object) -> None:
    own = tuple(sorted(os.sched_getaffinity(0)))
    member_of("0::/")  # type: ignore[operator]
    assert host.usable_cores(tmp_path) == own
    put(tmp_path, "cpu.max", "20000 100000")
    assert host.usable_cores(tmp_path) == own[:1]


def test_affinity_limits_the_cores(tmp_path: Path, member_of: object) -> None:
    member_of("0::/")  # type: ignore[operator]
    before = os.sched_getaffinity(0)
    one = max(before)
    try:
        os.sched_setaffinity(0, {one})
        assert host.usable_cores(tmp_path) == (one,)
    finally:
        os.sched_setaffinity(0, before)


def test_memory_limit_of_both_versions(tmp_path: Path, member_of: object) -> None:
    member_of("9:memory:/job", "0::/a")  # type: ignore[operator]
    put(tmp_path, "memory/job/memory.limit_in_bytes", str(2**63 - 4096))
    put(tmp_path, "a/memory.max", "max")
    assert host.memory_limit_mib(tmp_path) is None
    put(tmp_path, "a/memory.max", str(512 * 2**20))
    assert host.memory_limit_mib(tmp_path) == 512
    put(tmp_path, "memory/job/memory.limit_in_bytes", str(100 * 2**20))
    assert host.memory_limit_mib(tmp_path) == 100


def test_the_hosts_name_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    own = host.host_id()
    monkeypatch.setattr(host.socket, "gethostname", lambda: "some-other-host")
    assert host.host_id() != own
    assert "some" not in host.host_id()
    assert host.processor_name()
