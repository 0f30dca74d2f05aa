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
from typing import Any, cast

import pytest

from fakes.train_command import wait_for
from scalewise.analysis.identity import differences
from scalewise.config import ConfigError, build_cell
from scalewise.gpu.election import FileLock
from scalewise.records import CellFolder
from scalewise.sweep import supervisors as supervisors_module
from scalewise.sweep import warm
from scalewise.sweep.compose import compose_cell
from scalewise.sweep.lease import Host, Lease
from scalewise.sweep.process_tree import become_subreaper
from scalewise.sweep.rank_start import spawn
from scalewise.sweep.supervisors import Supervisors
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
    server = WarmServer(tmp_path, "forked")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(NotWarmError, match=r"warm\.err"):
        server.supervisor(tmp_path / "supervisor.err")
    server.stop()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_supervisor_that_was_forked_ends_with_its_sweep(tmp_path: Path) -> None:
    become_subreaper()  # as every sweep is
    server = WarmServer(tmp_path, "fresh")
    forked = server.supervisor(tmp_path / "supervisor.err")
    try:
        name = Path(f"/proc/{forked.pid}/comm")
        wait_for(lambda: name.read_text().strip() == warm.SUPERVISOR_NAME, "its name", 10)
        assert os.getsid(forked.pid) == forked.pid, "what is left of its cell is found by it"
        server.stop()
        with pytest.raises(subprocess.TimeoutExpired):
            forked.wait(0.1)
    finally:
        close(forked)
    assert forked.wait(30) == 1
    assert "closed before the job was read" in (tmp_path / "supervisor.err").read_text()
    assert not (tmp_path / "supervisors.err").exists(), "it had nothing to say"


def test_a_server_ends_with_the_sweep_that_started_it(tmp_path: Path) -> None:
    """However that ended: nothing tells the server but the kernel."""
    become_subreaper()  # the orphan comes to us
    sweep = (
        "import sys, time; from pathlib import Path; "
        "from scalewise.sweep.warm_start import WarmServer; "
        "server = WarmServer(Path(sys.argv[1]), 'fresh'); server.begin(); "
        "print(server._process.pid, flush=True); time.sleep(60)"
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
    """As many as the cores of a large host, which are more than the kernel takes at once."""
    become_subreaper()
    lock, other = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert lock.try_acquire()
    copies = [os.dup(lock.descriptors[0]) for _ in range(warm.MOST_DESCRIPTORS)]
    server = WarmServer(tmp_path, "fresh")
    forked = server.supervisor(tmp_path / "supervisor.err", (*lock.descriptors, *copies))
    try:
        lock.release()
        for copy in copies:
            os.close(copy)
        fds = [link.resolve() for link in Path(f"/proc/{forked.pid}/fd").iterdir()]
        assert fds.count(lock.path) == warm.MOST_DESCRIPTORS + 1
        assert not other.try_acquire()
    finally:
        close(forked)
    assert forked.wait(30) == 1, "no job was told"
    assert server._process is not None
    assert server._process.poll() is None
    wait_for(other.try_acquire, "the lock, while the server lives", 5)
    server.stop()


def test_what_is_imported_for_supervisors_leaves_the_ranks_their_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = dict(os.environ)
    with warm._one_thread():
        assert (os.environ["OPENBLAS_NUM_THREADS"], os.environ["OMP_NUM_THREADS"]) == ("1", "1")
    assert dict(os.environ) == before
    assert warm._ready("fresh") is spawn


def test_a_sweep_goes_on_without_a_server_that_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    started: list[str] = []

    def start(*cell: Any) -> Any:
        started.append("forked" if isinstance(cell[-1], WarmServer) else "fresh")
        if started[-1] == "forked":
            raise NotWarmError("it ended")

    monkeypatch.setattr(supervisors_module, "start", start)
    monkeypatch.setattr(WarmServer, "begin", lambda server: None)
    supervisors = Supervisors(tmp_path, warm=False, note=said.append)
    cell: Any = None
    supervisors.prepare(2)
    for _ in range(2):
        supervisors.start(cell, CellFolder(tmp_path), Lease((), ()), Host((), None, {}), (), ())
    assert started == ["forked", "fresh", "fresh"]
    assert said == ["warm     it ended; from here on, cells start without it"]


def test_one_cell_is_started_without_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[WarmServer] = []
    monkeypatch.setattr(WarmServer, "begin", begun.append)
    monkeypatch.setattr(supervisors_module, "start", lambda *cell: cell)
    supervisors = Supervisors(tmp_path, warm=False, note=lambda text: None)
    supervisors.prepare(1)
    cell: Any = None
    answer = supervisors.start(
        cell, CellFolder(tmp_path), Lease((), ()), Host((), None, {}), (), ()
    )
    assert not any(isinstance(part, WarmServer) for part in cast(Any, answer))
    assert not begun


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
        refusal = warm.answer(ours, [], spawn).decode()
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
