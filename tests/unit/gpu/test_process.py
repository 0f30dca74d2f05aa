from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil

from scalewise.gpu.readers import ProcessReader

_BUSY = "while True: pass"
_PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, '-c', {_BUSY!r}])
print(child.pid, flush=True)
sys.stdin.read()
child.kill(); child.wait()
"""


def test_cpu_and_memory_of_a_rank_include_its_children() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None and parent.stdin is not None
        parent.stdout.readline()
        reader = ProcessReader()
        first = reader.read({3: parent.pid})["rank3"]
        time.sleep(0.5)
        second = reader.read({3: parent.pid})["rank3"]
        at_once = reader.read({3: parent.pid})["rank3"]
        parent.stdin.close()
    assert first.utilization_percent is None
    # The parent sleeps: whatever ran was the child. Two cores may be shared with others.
    assert second.utilization_percent is not None and 10 < second.utilization_percent < 110
    assert second.memory_used_mib is not None and second.memory_used_mib > 8
    assert second.power_w is None
    assert at_once.utilization_percent is None, "a window below the kernel's ticks says nothing"
    assert at_once.memory_used_mib is not None


def test_a_process_that_is_gone_gives_no_sample() -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as gone:
        gone.wait()
    reader = ProcessReader()
    assert reader.read({0: gone.pid}) == {}


def test_a_process_that_is_ending_has_no_memory_to_tell_of() -> None:
    reader = ProcessReader()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        living = reader.read({0: child.pid})["rank0"]
        assert living.memory_used_mib is not None and living.memory_used_mib > 0
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie until it is waited for
        assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
        time.sleep(0.1)
        dead = reader.read({0: child.pid})["rank0"]
    assert dead.memory_used_mib is None
    assert dead.utilization_percent is not None
