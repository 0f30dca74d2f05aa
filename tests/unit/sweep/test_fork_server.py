"""Cells that are forked from a warm server: which may be, and what the sweep sees of them."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.train_command import wait_for
from scalewise.analysis.comparability import differences
from scalewise.config import build_cell
from scalewise.gpu import Host, Lease
from scalewise.host import FileLock, become_subreaper
from scalewise.records import CellFolder, SweepFolder
from scalewise.sweep import QueuedCell, fork_server, local_executor
from scalewise.sweep.compose import compose_cell
from scalewise.sweep.fork_server import ForkedSupervisor, NotWarmError, WarmServer, may_fork
from scalewise.sweep.local_executor import LocalExecutor
from scalewise.sweep.schedule import LocalDemand


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
    before = len(list(Path("/proc/self/fd").iterdir()))
    server = WarmServer(tmp_path)
    with pytest.raises(NotWarmError, match=r"warm\.err"):
        server.fork_supervisor(tmp_path / "supervisor.err")
    server.stop()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_supervisor_that_was_forked_ends_with_its_sweep(tmp_path: Path) -> None:
    become_subreaper()  # as every sweep is
    server = WarmServer(tmp_path)
    forked = server.fork_supervisor(tmp_path / "supervisor.err")
    try:
        name = Path(f"/proc/{forked.pid}/comm")
        wait_for(lambda: name.read_text().strip() == "supervisor", "its name", 10)
        assert os.getsid(forked.pid) == forked.pid, "what is left of its cell is found by it"
        server.stop()
        with pytest.raises(subprocess.TimeoutExpired):
            forked.wait(0.1)
    finally:
        close(forked)
    assert forked.wait(30) == 1
    assert "closed before the job was read" in (tmp_path / "supervisor.err").read_text()
    assert not (tmp_path / "warm.err").exists(), "it had nothing to say"


def test_a_server_ends_with_the_sweep_that_started_it(tmp_path: Path) -> None:
    """However that ended: nothing tells the server but the kernel."""
    become_subreaper()  # the orphan comes to us
    sweep = (
        "import sys, time; from pathlib import Path; "
        "from scalewise.sweep.fork_server import WarmServer; "
        "server = WarmServer(Path(sys.argv[1])); "
        "print(server.process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", sweep, str(tmp_path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        server = int(process.stdout.readline())
        ended = os.pidfd_open(server)
        process.kill()
    try:
        assert select.select([ended], [], [], 30)[0]
        assert os.waitpid(server, 0)[0] == server
    finally:
        os.close(ended)


def test_locks_are_handed_to_a_fork_and_not_kept_by_its_server(tmp_path: Path) -> None:
    become_subreaper()
    lock, other = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert lock.try_acquire()
    server = WarmServer(tmp_path)
    forked = server.fork_supervisor(tmp_path / "supervisor.err", lock.descriptors)
    try:
        lock.release()
        fds = [link.resolve() for link in Path(f"/proc/{forked.pid}/fd").iterdir()]
        assert fds.count(lock.path) == 1
        assert not other.try_acquire()
    finally:
        close(forked)
    assert forked.wait(30) == 1, "no job was told"
    assert server.process.poll() is None
    wait_for(other.try_acquire, "the lock, while the server lives", 5)
    server.stop()


def test_more_locks_than_one_message_holds_are_refused(tmp_path: Path) -> None:
    server = WarmServer(tmp_path)
    with pytest.raises(NotWarmError, match="303 locks"):
        server.fork_supervisor(tmp_path / "supervisor.err", (0,) * 300)
    server.stop()


def test_a_sweep_goes_on_without_a_server_that_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_executor, "may_fork", lambda plain, cell: True)
    monkeypatch.setattr(local_executor, "job_of", lambda *_, **__: SimpleNamespace(to_line=bytes))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    said: list[str] = []
    executor = LocalExecutor("exclusive", warm=True)
    executor.open(SweepFolder(tmp_path), (), said.append)
    cell: Any = SimpleNamespace(planned=None, request=SimpleNamespace(plain={}, cell=None))
    queued = QueuedCell(cell, LocalDemand(1, Host((), None, {})))
    for _ in range(2):
        held = executor.start_supervisor(queued, CellFolder(tmp_path), Lease((), ()))
        assert isinstance(held.process, subprocess.Popen), "it is started freshly"
        assert held.outcome().cause == "supervisor", "as the stand-in for Python fails"
    executor.close()
    assert [line.split(";")[0].split()[0] for line in said] == ["warm"]


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
        assert "library-pool" in fork_server.threads()
        # Names are cut to what one message holds: others may run from tests before this one.
        assert b" threads run in the process to fork: " in fork_server.answer(ours, [])
    finally:
        stop.set()
        thread.join()
        ours.close()
        theirs.close()


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
