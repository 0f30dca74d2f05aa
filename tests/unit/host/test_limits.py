"""What a process may use: affinity and cgroup limits of both versions."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from scalewise.host import limits


@pytest.fixture
def member_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put this process into the cgroups of ``/proc/self/cgroup`` lines."""
    read = limits._read

    def use(*lines: str) -> None:
        def fake(path: Path) -> str | None:
            return "\n".join(lines) if path == Path("/proc/self/cgroup") else read(path)

        monkeypatch.setattr(limits, "_read", fake)

    return use


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        (
            ["0::/a/b"],
            {"a/b/cpu.max": "400000 100000", "a/cpu.max": "150000 100000", "cpu.max": "max 100000"},
            1.5,
        ),
        (["4:cpu,cpuacct:/job", "0::/"], {"cpu,cpuacct/job/cpu.cfs_quota_us": "-1"}, None),
        (["4:cpu,cpuacct:/job", "0::/"], {"cpu,cpuacct/job/cpu.cfs_quota_us": "50000"}, 0.5),
    ],
)
def test_the_smallest_quota_of_either_version_counts(
    tmp_path: Path,
    member_of: Callable[..., None],
    groups: list[str],
    files: dict[str, str],
    quota: float | None,
) -> None:
    member_of(*groups)
    for name, text in {"cpu,cpuacct/job/cpu.cfs_period_us": "100000", **files}.items():
        put(tmp_path, name, text)
    assert limits.cpu_quota(tmp_path) == quota


def test_a_quota_limits_the_cores_and_leaves_one(
    tmp_path: Path, member_of: Callable[..., None]
) -> None:
    own = tuple(sorted(os.sched_getaffinity(0)))
    member_of("0::/")
    assert limits.usable_cores(tmp_path) == own
    put(tmp_path, "cpu.max", "20000 100000")
    assert limits.usable_cores(tmp_path) == own[:1]


def test_affinity_limits_the_cores(tmp_path: Path, member_of: Callable[..., None]) -> None:
    member_of("0::/")
    before = os.sched_getaffinity(0)
    one = max(before)
    try:
        os.sched_setaffinity(0, {one})
        assert limits.usable_cores(tmp_path) == (one,)
    finally:
        os.sched_setaffinity(0, before)


def test_memory_limit_of_both_versions(tmp_path: Path, member_of: Callable[..., None]) -> None:
    member_of("9:memory:/job", "0::/a")
    put(tmp_path, "memory/job/memory.limit_in_bytes", str(2**63 - 4096))
    put(tmp_path, "a/memory.max", "max")
    assert limits.memory_limit_mib(tmp_path) is None
    put(tmp_path, "a/memory.max", str(512 * 2**20))
    assert limits.memory_limit_mib(tmp_path) == 512
    put(tmp_path, "memory/job/memory.limit_in_bytes", str(100 * 2**20))
    assert limits.memory_limit_mib(tmp_path) == 100


def test_the_memory_that_is_left_is_the_least_of_machine_and_cgroups(
    tmp_path: Path, member_of: Callable[..., None]
) -> None:
    member_of("0::/job")
    put(tmp_path, "meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n")
    meminfo = tmp_path / "meminfo"
    assert limits.memory_available_mib(tmp_path, meminfo) == 4096
    put(tmp_path, "memory.max", "max")
    put(tmp_path, "job/memory.max", str(2048 * 2**20))
    put(tmp_path, "job/memory.current", str(1024 * 2**20))
    put(tmp_path, "job/memory.stat", f"anon 1\ninactive_file {512 * 2**20}\n")
    assert limits.memory_available_mib(tmp_path, meminfo) == 1536
    assert limits.memory_available_mib(tmp_path, tmp_path / "none") == 1536
    assert limits.memory_available_mib(tmp_path / "none", tmp_path / "none") is None
