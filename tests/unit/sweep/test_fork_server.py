"""Cells that are forked from a warm server: which may be, and what the sweep sees of them."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from fakes.recorded import Spec, write_sweep
from fakes.requests import asked
from fakes.settings import job_in
from fakes.train_command import wait_for
from scalewise.gpu import Host, Lease
from scalewise.host import FileLock, become_subreaper, fork_hindrance
from scalewise.records import CellFolder, SweepFolder
from scalewise.supervisor import supervisor_command
from scalewise.sweep import QueuedCell, fork_server, local_executor
from scalewise.sweep.fork_server import ForkedSupervisor, NotWarmError, WarmServer, cell_hindrance
from scalewise.sweep.local_executor import LocalConfig, LocalDemand, LocalExecutor
from scalewise.sweep.plan import make_cell


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
    ended.terminate()  # its id may be somebody else's by now: nothing is sent
    with pytest.raises(psutil.TimeoutExpired):
        sleeping.wait(0.05)
    sleeping.kill()
    assert sleeping.wait(10) == -signal.SIGKILL
    close(ended)
    close(sleeping)


def test_a_server_that_dies_is_said_and_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/cat")  # which says what it cannot do
    before = len(list(Path("/proc/self/fd").iterdir()))
    server = WarmServer(tmp_path, sys.path)
    with pytest.raises(NotWarmError, match=r"warm\.err"):
        server.fork_supervisor(tmp_path / "supervisor.err")
    server.stop()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert "cat: " in (tmp_path / "warm.err").read_text()


def test_a_server_ends_with_the_sweep_that_started_it(tmp_path: Path) -> None:
    """However that ended: nothing tells the server but the kernel."""
    become_subreaper()  # the orphan comes to us
    sweep = (
        "import sys, time; from pathlib import Path; "
        "from scalewise.sweep.fork_server import WarmServer; "
        "server = WarmServer(Path(sys.argv[1]), sys.path); "
        "print(server.process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", sweep, str(tmp_path)], stdout=subprocess.PIPE
    ) as process:
        server = int(process.stdout.readline())
        ended = os.pidfd_open(server)
        process.kill()
    try:
        assert select.select([ended], [], [], 30)[0]
        assert os.waitpid(server, 0)[0] == server
    finally:
        os.close(ended)


def test_a_fork_has_its_locks_which_its_server_lets_go_and_outlives_it(tmp_path: Path) -> None:
    become_subreaper()  # as every sweep is
    lock, other = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert lock.try_acquire()
    server, errors = WarmServer(tmp_path, sys.path), tmp_path / "supervisor.err"
    with pytest.raises(NotWarmError, match="303 locks"):
        server.fork_supervisor(errors, (0,) * 300)
    forked = server.fork_supervisor(errors, lock.descriptors)
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
    forked = server.fork_supervisor(errors)
    try:
        name = Path(f"/proc/{forked.pid}/comm")
        wait_for(lambda: name.read_text().strip() == "supervisor", "its name", 10)
        assert psutil.Process(forked.pid).cmdline() == supervisor_command(())
        assert os.getsid(forked.pid) == forked.pid, "what is left of its cell is found by it"
        server.stop()
        with pytest.raises(psutil.TimeoutExpired):
            forked.wait(0.1)
    finally:
        close(forked)
    assert forked.wait(30) == 1
    assert "closed before the job was read" in errors.read_text()
    assert not (tmp_path / "warm.err").exists(), "it had nothing to say"


def test_a_sweep_goes_on_without_a_server_that_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_executor, "Job", lambda *_, **__: job_in(tmp_path))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    said: list[str] = []
    executor = LocalExecutor(LocalConfig(warm=True))
    executor.open(SweepFolder(tmp_path), (), said.append)
    cell, demand = make_cell(asked("hardware=cpu"), 0), LocalDemand(1, Host((), None, {}))
    queued = QueuedCell(cell, CellFolder(tmp_path), demand)
    for _ in range(2):
        held = executor.start_supervisor(queued, Lease((), ()))
        assert isinstance(held.process, subprocess.Popen), "it is started freshly"
        assert held.ending().cause == "supervisor", "as the stand-in for Python fails"
        assert "warm.err" in str(held.job.not_forked), "its record says why"
    executor.close()
    assert [line.split(";")[0].split()[0] for line in said] == ["warm"]


class _Server:
    """Stands in for a warm server."""

    def __init__(self, folder: Path, python_path: Sequence[str], *, lean: bool) -> None:
        self.lean = lean
        self.status: int | None = None
        self.process = SimpleNamespace(poll=lambda: self.status)
        self.stopped = self.is_ready = False

    def wait_ready(self) -> None:
        self.is_ready = True

    def stop(self) -> None:
        self.stopped = True


def _admitting(folder: Path, repeat: int, *overrides: str) -> LocalExecutor:
    """An executor that was asked for a cell of that repeat."""
    executor = LocalExecutor(LocalConfig())
    executor.open(SweepFolder(folder), (), print)
    executor.demand(make_cell(asked("hardware=cpu", *overrides), repeat))
    assert executor._not_forked is None, "without being asked"
    return executor


@pytest.fixture
def stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_executor, "WarmServer", _Server)


@pytest.mark.usefixtures("stands_in")
def test_each_round_has_a_server_of_its_own_and_so_has_each_other_kind(tmp_path: Path) -> None:
    executor = _admitting(tmp_path, 3, "repeats=4")
    first: Any = executor._server_of(0, ())
    assert first.lean and executor._server_of(0, ()) is first
    second: Any = executor._server_of(1, ())
    assert second is not first and second.is_ready and first.stopped
    assert executor._server_of(1, ()) is second and not second.stopped
    third: Any = executor._server_of(2, ())
    assert second.stopped
    third.status = -9
    fourth: Any = executor._server_of(2, ())
    assert fourth is not third, "that was killed"
    executor._lean = False  # as of a later stage's cell with a class of one's own
    whole: Any = executor._server_of(2, ())
    assert fourth.stopped and not whole.lean and executor._server_of(2, ()) is whole
    executor.close()


@pytest.mark.usefixtures("stands_in")
@pytest.mark.parametrize(("repeats", "servers"), [("repeats=3", 1), ("repeats=auto", 2)])
def test_a_server_is_started_early_only_for_a_round_that_may_come(
    tmp_path: Path, repeats: str, servers: int
) -> None:
    executor = _admitting(tmp_path, 2, repeats)
    executor._server_of(2, ())
    assert len(executor._servers) == servers
    executor.close()


def test_a_folder_goes_on_as_it_began(tmp_path: Path) -> None:
    """Whatever ``hydra.launcher.warm`` says: its runs are to compare with one another."""
    for started, begins in (("fresh", "earlier cells"), ("forked", None)):
        sweep = SweepFolder(write_sweep(tmp_path / started, [Spec(started=started)]))
        executor = LocalExecutor(LocalConfig(warm=True))
        executor.open(sweep, (), print)
        assert (executor._not_forked or "").startswith(begins or "")
        assert (executor._not_forked is None) == (begins is None)
        executor.close()


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
        assert "library-pool" in (fork_hindrance(os.environ) or "")
        # Names are cut to what one message holds: others may run from tests before this one.
        assert b" threads run in the process to fork: " in fork_server.answer(ours, [])
    finally:
        stop.set()
        thread.join()
        ours.close()
        theirs.close()


_IN_ONE_THREAD = """
import os
from pathlib import Path
from scalewise.host import fork_hindrance
print(fork_hindrance({**os.environ, "RANK": "1", "TORCH_NCCL_BLOCKING_WAIT": "1",
                      "OMP_NUM_THREADS": "7"}))
print(fork_hindrance({**os.environ, "TORCHINDUCTOR_CPP_WRAPPER": "1"}))
print(fork_hindrance({n: v for n, v in os.environ.items() if n != "MALLOC_ARENA_MAX"}))
own = Path.readlink
Path.readlink = lambda path: Path(str(own(path)).replace("/dev/null", "/dev/nvidia0"))
print(fork_hindrance(os.environ))
"""


def test_who_read_another_environment_or_touched_a_gpu_is_not_forked(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", _IN_ONE_THREAD],
        cwd=tmp_path, env={**os.environ, "MALLOC_ARENA_MAX": "2"}, text=True, check=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    ).stdout.splitlines()  # fmt: skip
    assert said == [
        "None",
        "read on import, and other than there: TORCHINDUCTOR_CPP_WRAPPER",
        "read on import, and other than there: MALLOC_ARENA_MAX",
        "the process to fork has /dev/nvidia0 open",
    ]


def test_cells_that_others_start_are_no_forks() -> None:
    cell = asked("hardware=cpu").cell
    assert cell_hindrance(cell) is None
    wrapped = replace(cell, sweep=replace(cell.sweep, wrap="nice"))
    assert "hydra.launcher.wrap" in (cell_hindrance(wrapped) or "")
