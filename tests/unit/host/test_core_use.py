"""Who had the cores: the kernel's counts, and this process's with all that it started."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from scalewise.host import CoreUseMeter, RunQueue, limits

_BUSY = "import time; end = time.process_time() + {:g}\nwhile time.process_time() < end: pass\n"


def burn(seconds: float) -> None:
    """Spend so much CPU time in this process."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def kernel(folder: Path, *cores: str) -> Path:
    """A /proc with these lines of cores, and without children of this process."""
    task = folder / str(os.getpid()) / "task" / "1"
    task.mkdir(parents=True, exist_ok=True)
    (task / "children").write_text("")
    total = "cpu  9 9 9 9 9 9 9 9 0 0"
    (folder / "stat").write_text("\n".join([total, *cores, "intr 7 7", "cpus 1"]) + "\n")
    return folder


def test_time_of_processes_and_of_a_hypervisor_is_busy_and_interrupts_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 3})
    other = "cpu0 1000 1000 1000 0 0 0 0 1000 0 0"
    before = ["cpu1 100 0 50 500 5 1 1 0 0 0", "cpu3 0 0 0 900 0 0 0 0 0 0"]
    after = ["cpu1 150 10 70 600 9 90 90 5 0 0", "cpu3 100 0 0 999 0 0 0 0 0 0"]
    meter = CoreUseMeter(kernel(tmp_path, other, *before))
    meter.begin()
    kernel(tmp_path, other.replace("1000", "9000"), *after)
    found = meter.end()
    assert (found.cores, meter.missing) == (2, None)
    assert found.busy_s == pytest.approx((50 + 10 + 20 + 5 + 100) / os.sysconf("SC_CLK_TCK"))


def test_what_is_not_known_has_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meter = CoreUseMeter(tmp_path / "nowhere")
    meter.begin()
    assert meter.end() is None
    assert meter.missing is not None and "No such file" in meter.missing
    meter = CoreUseMeter()
    assert meter.end() is None, "it was never begun"
    meter.begin()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 999})
    assert meter.end() is None
    assert meter.missing == "the process was bound to other cores meanwhile"


def test_a_kernel_that_lists_no_children_is_not_taken_for_one_without_any(tmp_path: Path) -> None:
    proc = kernel(tmp_path, "cpu0 0 0 0 0 0 0 0 0 0 0")
    task = proc / str(os.getpid()) / "task" / "1"
    (task / "children").rename(task / "stat")
    meter = CoreUseMeter(proc)
    meter.begin()
    assert meter.missing is not None and "children" in meter.missing


def test_own_time_has_threads_children_and_those_that_ended_in_it() -> None:
    meter = CoreUseMeter()
    run = f"subprocess.run([sys.executable, '-c', {_BUSY.format(0.2)!r}])"
    waiting = f"import subprocess, sys; {run}\n" + _BUSY.format(0.2) + "print(flush=True); input()"
    meter.begin()
    burn(0.2)
    subprocess.run([sys.executable, "-c", _BUSY.format(0.2)], check=True)
    with subprocess.Popen(
        [sys.executable, "-c", waiting], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as alive:
        alive.stdout.readline()
        found = meter.end()
        alive.communicate(b"\n")
    assert found.own_s >= 0.78, "four times 0.2 s, less ticks"
    assert found.own_s <= found.busy_s + 0.15, "all of it ran on these cores"


# What a process may use: affinity and cgroup limits of both versions.
@pytest.fixture
def member_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put this process into the cgroups of ``/proc/self/cgroup`` lines."""
    read = limits.kernel_text

    def use(*lines: str) -> None:
        def fake(path: Path) -> str | None:
            return "\n".join(lines) if path == Path("/proc/self/cgroup") else read(path)

        monkeypatch.setattr(limits, "kernel_text", fake)

    return use


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        (["0::/a/b"], {"a/b/cpu.max": "400000 100000", "a/cpu.max": "150000 100000",
                       "cpu.max": "max 100000"}, 1.5),
        (["4:cpu,cpuacct:/job", "0::/"], {"cpu,cpuacct/job/cpu.cfs_quota_us": "-1"}, None),
        (["4:cpu,cpuacct:/job", "0::/"], {"cpu,cpuacct/job/cpu.cfs_quota_us": "50000"}, 0.5),
    ],
)  # fmt: skip
def test_the_smallest_quota_of_either_version_counts(
    tmp_path: Path, member_of: Callable[..., None], groups: list[str], files: dict[str, str],
    quota: float | None,
) -> None:  # fmt: skip
    member_of(*groups)
    for name, text in {"cpu,cpuacct/job/cpu.cfs_period_us": "100000", **files}.items():
        put(tmp_path, name, text)
    assert limits.cpu_quota(tmp_path) == quota


def test_affinity_and_a_quota_limit_the_cores_and_leave_one(
    tmp_path: Path, member_of: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7, 3, 5})
    member_of("0::/")
    assert limits.usable_cores(tmp_path) == (3, 5, 7)
    for quota, cores in (("120000 100000", (3, 5)), ("20000 100000", (3,))):
        put(tmp_path, "cpu.max", quota)
        assert limits.usable_cores(tmp_path) == cores


def test_memory_limit_of_both_versions_and_kills_where_they_are_counted(
    tmp_path: Path, member_of: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = Mock(side_effect=[SimpleNamespace(total=2**30, free=2**28), FileNotFoundError])
    monkeypatch.setattr(limits.psutil, "disk_usage", disks)
    assert [limits.shared_memory_mib() for _ in range(2)] == [(1024.0, 256.0), (None, None)]
    member_of("9:memory:/job", "0::/a")
    assert limits.oom_kills(tmp_path) is None
    put(tmp_path, "a/memory.events", "oom 4\noom_kill 3\n")
    assert limits.oom_kills(tmp_path) == 3
    put(tmp_path, "memory/job/memory.limit_in_bytes", str(2**63 - 4096))
    put(tmp_path, "a/memory.max", "max")
    assert limits.memory_limit_mib(tmp_path) is None
    put(tmp_path, "a/memory.max", str(512 * 2**20))
    assert limits.memory_limit_mib(tmp_path) == 512
    put(tmp_path, "memory/job/memory.limit_in_bytes", str(100 * 2**20))
    assert limits.memory_limit_mib(tmp_path) == 100


# Run-queue delay from the kernel's count.
TOLD = "5000000 1000000 7\n", "9000000 61000000 9\n"


@pytest.mark.parametrize(
    ("begin", "end", "steps", "ms"),
    [(*TOLD, 30, 2.0), (*TOLD, 0, None), (*TOLD, -1, None), (None, TOLD[1], 10, None),
     (TOLD[0], "", 10, None), (TOLD[0], "5000\n", 10, None), ("a b c\n", None, 10, None)],
)  # fmt: skip
def test_the_delay_is_told_per_step_or_missing_with_a_reason(
    tmp_path: Path, begin: str | None, end: str | None, steps: int, ms: float | None
) -> None:
    queue, path = RunQueue(tmp_path / "schedstat"), tmp_path / "schedstat"
    for text, ask in ((begin, queue.begin), (end, queue.ms_per_step)):
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        found = ask(20 if ask == queue.begin else 20 + steps)
    assert found is not None and found[0] == ms
    assert (queue.missing is None) == ((begin, end) == TOLD)


def test_cpu_time_of_the_other_threads_stands_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "schedstat"
    path.write_text("1 2 3\n")
    for clock, first_ns, then_ns in (
        ("process_time_ns", 50_000_000, 350_000_000),
        ("thread_time_ns", 40_000_000, 220_000_000),
    ):
        monkeypatch.setattr(f"time.{clock}", iter([first_ns, then_ns]).__next__)
    queue = RunQueue(path)
    queue.begin(20)
    delay_ms, others_ms = queue.ms_per_step(50)
    assert (delay_ms, others_ms) == (0.0, 120 / 30)
    assert limits._with_ended_children_s(tmp_path / "gone") == 0, "its parent's time includes it"
