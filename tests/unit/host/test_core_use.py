"""Who had the cores: the kernel's counts, and this process's with all that it started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scalewise.host import CoreUseMeter

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
    assert found is not None
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
    grandchild = f"import subprocess, sys; {run}\n"
    waiting = grandchild + _BUSY.format(0.2) + "print(flush=True); input()"
    meter.begin()
    burn(0.2)
    subprocess.run([sys.executable, "-c", _BUSY.format(0.2)], check=True)
    with subprocess.Popen(
        [sys.executable, "-c", waiting], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as alive:
        assert alive.stdout is not None
        alive.stdout.readline()
        found = meter.end()
        alive.communicate(b"\n")
    assert found is not None
    assert found.own_s >= 0.78, "four times 0.2 s, less ticks"
    assert found.own_s <= found.busy_s + 0.15, "all of it ran on these cores"


_METER = """
import os, time
from scalewise.host import CoreUseMeter
os.sched_setaffinity(0, {core})
meter = CoreUseMeter()
meter.begin()
time.sleep(1.0)
found = meter.end()
print((found.busy_s - found.own_s) / found.window_s)
"""


def test_time_of_others_on_the_same_core_is_not_own() -> None:
    core = {min(os.sched_getaffinity(0))}
    bound = f"import os; os.sched_setaffinity(0, {core})\n"
    spinning = subprocess.Popen([sys.executable, "-c", bound + "while True: pass"])
    try:
        measure = [sys.executable, "-c", _METER.replace("{core}", str(core))]
        told = subprocess.run(measure, check=True, capture_output=True, text=True).stdout
    finally:
        spinning.kill()
        spinning.wait()
    assert 0.7 < float(told) < 1.1, "it slept, and the core was never idle"
