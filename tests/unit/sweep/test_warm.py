"""Cells that are forked from a warm server: which may be, and what the sweep sees of them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from scalewise.analysis.identity import differences
from scalewise.config import ConfigError, build_cell
from scalewise.sweep import warm
from scalewise.sweep.compose import compose_cell
from scalewise.sweep.warm_start import (
    ForkedSupervisor,
    NotWarmError,
    WarmServer,
    check_warm,
    may_fork,
)


def child(code: int | None) -> ForkedSupervisor:
    """A fork that exits with ``code``, or sleeps."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        if code is None:
            time.sleep(60)
        os._exit(code or 0)
    return ForkedSupervisor(pid, os.fdopen(write, "wb"), os.fdopen(read, "rb"))


def close(process: ForkedSupervisor) -> None:
    process.stdin.close()
    process.stdout.close()


def test_waits_for_a_fork_as_for_a_process_of_its_own() -> None:
    ended, sleeping = child(3), child(None)
    assert ended.wait(10) == 3 == ended.wait()
    ended.kill()  # its id may be somebody else's by now: nothing is sent
    with pytest.raises(subprocess.TimeoutExpired):
        sleeping.wait(0.05)
    sleeping.kill()
    assert sleeping.wait(10) == -signal.SIGKILL
    close(ended)
    close(sleeping)


def test_a_server_that_dies_is_said_and_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    server = WarmServer(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(NotWarmError, match=r"warm\.err"):
        server.supervisor(tmp_path / "supervisor.err")
    server.stop()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_process_with_threads_is_not_forked() -> None:
    named, stop = threading.Event(), threading.Event()

    def pool() -> None:
        Path("/proc/thread-self/comm").write_text("library-pool")
        named.set()
        stop.wait()

    thread = threading.Thread(target=pool)
    thread.start()
    named.wait()
    ours, theirs = socket.socketpair()
    try:
        refusal = warm.answer(ours, []).decode()
        assert refusal.startswith(f"{len(warm.threads())} threads run in the process to fork: ")
        assert "library-pool" in refusal
    finally:
        stop.set()
        thread.join()
        ours.close()
        theirs.close()


def test_repeats_that_decide_by_times_are_refused() -> None:
    fixed, auto = (build_cell(compose_cell([f"repeats={n}"])) for n in ("3", "auto"))
    check_warm({"warm": True}, [fixed])
    check_warm({"warm": False}, [auto])
    with pytest.raises(ConfigError, match="repeats=auto"):
        check_warm({"warm": True}, [fixed, auto])
    with pytest.raises(ConfigError, match="'yes'; allowed: true"):
        check_warm({"warm": "yes"}, [fixed])


def test_what_reads_its_environment_on_import_is_started_freshly() -> None:
    plain = compose_cell(["hardware=cpu"])
    cell = build_cell(plain)
    assert may_fork(plain, cell)
    assert not may_fork(plain, replace(cell, sweep=replace(cell.sweep, wrap="nice")))
    assert not may_fork(plain, replace(cell, workload="doctor"))
    compiled = compose_cell(["hardware=cpu", "execution=compile"])
    assert not may_fork(compiled, build_cell(compiled))
    own = {**plain, "model": {**plain["model"], "_target_": "mine.Net"}}
    assert not may_fork(own, cell)


def test_times_of_forks_are_not_compared_with_those_of_fresh_runs() -> None:
    found = differences({"devices": "1"}, {"devices": "2", "started": "forked"})
    assert [str(d) for d in found] == ["started: absent against forked"]
