"""Starting, watching and ending the processes of one cell."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scalewise.config import CellConfig
from scalewise.records import CellFolder
from scalewise.sweep.interface import interface_towards
from scalewise.sweep.job import Job
from scalewise.sweep.rank_start import RankStart, Starter, spawn
from scalewise.train.rank import across_hosts, rendezvous, scrubbed
from scalewise.typed import to_plain
from scalewise.wrap import wrap_command

ENV_SUPERVISOR = "SCALEWISE_SUPERVISOR_PID"
"""In the environment of every rank and of whatever it starts."""
ENV_WRAPPED = "SCALEWISE_WRAPPED"
"""``1`` where another program (``hydra.launcher.wrap``) starts the rank."""

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Adopt every orphan below this process, so that none can slip away.

    Raises OSError where the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def descendants(pid: int) -> list[int]:
    """Every process below ``pid``, from one pass over ``/proc``."""
    children: dict[int, list[int]] = {}
    for child, (parent, _) in _process_table().items():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def end_descendants(grace_s: float, limit_s: float = 9.0) -> list[int]:
    """End every process below this one: asked first, then made to. Returns what is left.

    Only processes stuck in the kernel can be left after ``limit_s``.
    """
    begun = time.monotonic()
    signalled: set[int] = set()
    while True:
        reap()
        alive = descendants(os.getpid())
        elapsed = time.monotonic() - begun
        if not alive or elapsed > limit_s:
            return alive
        for pid in alive:
            if elapsed >= grace_s:
                _kill(pid, signal.SIGKILL)
            elif pid not in signalled:
                _kill(pid, signal.SIGTERM)
                signalled.add(pid)
        time.sleep(0.02)


def reap() -> dict[int, int]:
    """Exit statuses of all children that have ended (negative: the signal), by process id."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


@dataclass
class RankProcess:
    """One rank of the cell."""

    rank: int
    pid: int
    exit_code: int | None = None
    ended_at: float | None = None
    """Unix time at which its end was seen."""


class Ranks:
    """The rank processes of one cell, started from the main thread of their supervisor."""

    def __init__(
        self, job: Job, cell: CellConfig, folder: CellFolder, starter: Starter = spawn
    ) -> None:
        self._starter = starter
        self._job = job
        self._cell = cell
        self._folder = folder
        self._children: list[subprocess.Popen[bytes] | None] = []
        self.processes: list[RankProcess] = []

    def start(self) -> None:
        """Start one process a slot; they find each other on a free port of the first host."""
        port = free_port() if self._job.nodes is None else self._job.nodes.port
        for local_rank in range(len(self._job.slots)):
            rank = self._job.first_rank + local_rank
            out, err = self._folder.log_path(rank, "out"), self._folder.log_path(rank, "err")
            out.parent.mkdir(parents=True, exist_ok=True)
            command = self._command(rank, local_rank)
            environment = self._environment(rank, local_rank, port)
            pid, child = self._starter(RankStart(command, environment, self._job.cwd, out, err))
            self._children.append(child)
            self.processes.append(RankProcess(rank, pid))

    def _command(self, rank: int, local_rank: int) -> list[str]:
        wrap = self._cell.sweep.wrap
        if wrap is None:
            return self._own
        around = wrap_command(wrap, rank, local_rank, self._job.folder)
        return [sys.executable, "-P", "-m", "scalewise.sweep.wrapped", *around, *self._own]

    @property
    def _own(self) -> list[str]:
        """What a rank runs, without anything around it."""
        return [sys.executable, "-P", "-m", "scalewise.sweep.worker", self._job.folder]

    def trainers(self) -> dict[int, int]:
        """Rank to the process that trains, of those alive: under a profiler it is not our child.

        A rank whose process has not been started by its profiler yet is absent.
        """
        if self._cell.sweep.wrap is None:
            return {p.rank: p.pid for p in self.alive}
        own = [word.encode() for word in self._own]
        found = {}
        for process in self.alive:
            below = [process.pid, *descendants(process.pid)]
            trainer = next((pid for pid in below if _command_line(pid) == own), None)
            if trainer is not None:
                found[process.rank] = trainer
        return found

    def collect(self) -> None:
        """Note every rank that has ended since the last call."""
        by_pid = {p.pid: p for p in self.processes}
        for pid, code in reap().items():
            if pid in by_pid:
                by_pid[pid].exit_code = code
                by_pid[pid].ended_at = time.time()
        for child, process in zip(self._children, self.processes, strict=True):
            # Reaped above and not by Popen, which would otherwise warn of a lost child.
            if child is not None:
                child.returncode = process.exit_code

    @property
    def alive(self) -> list[RankProcess]:
        return [p for p in self.processes if p.exit_code is None]

    @property
    def failed(self) -> list[RankProcess]:
        return [p for p in self.processes if p.exit_code not in (None, 0)]

    def dump_stacks(self) -> None:
        """Ask every living rank to write the stacks of its threads to its stderr log."""
        for pid in self.trainers().values():
            _kill(pid, signal.SIGUSR1)

    def _environment(self, rank: int, local_rank: int, port: int) -> dict[str, str]:
        job, slot = self._job, self._job.slots[local_rank]
        threads = str(max(1, len(slot.cores)))
        environment = {
            **scrubbed(os.environ),
            **self._cell.hardware.nccl_environment(),
            **self._cell.execution.rank_environment(job.world_size),
            **rendezvous(rank, local_rank, job.world_size, port),
            **_between_hosts(job),
            "PYTHONPATH": os.pathsep.join(job.python_path),
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            ENV_SUPERVISOR: str(os.getpid()),
            ENV_WRAPPED: "0" if self._cell.sweep.wrap is None else "1",
            "SCALEWISE_DEVICE": json.dumps(to_plain(slot)),
            "SCALEWISE_DEVICES": json.dumps(to_plain(job.slots)),
            "SCALEWISE_TOPOLOGY": json.dumps(dict(job.topology)),
            "SCALEWISE_HOSTS": str(1 if job.nodes is None else job.nodes.count),
            "SCALEWISE_COMMAND": json.dumps(list(job.command)),
        }
        if job.driver is not None:
            environment["SCALEWISE_DRIVER"] = job.driver
        environment |= device_environment(job, self._cell)
        return environment


def _between_hosts(job: Job) -> Mapping[str, str]:
    """What differs where the ranks are on several hosts; nothing where they are on one."""
    if job.nodes is None:
        return {}
    found = across_hosts(job.nodes.index, job.nodes.address)
    interface = interface_towards(job.nodes.address)
    if interface is not None and "GLOO_SOCKET_IFNAME" not in os.environ:
        found["GLOO_SOCKET_IFNAME"] = interface
    return found


def device_environment(job: Job, cell: CellConfig) -> Mapping[str, str]:
    """What makes the ranks see their own devices and no others."""
    uuids = [slot.uuid for slot in job.slots if slot.uuid is not None]
    environment = {"CUDA_VISIBLE_DEVICES": ",".join(uuids)}
    if cell.deterministic:
        # cuBLAS is deterministic only with a fixed workspace, and reads this when it starts.
        environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    return environment


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nobody listens on right now: of the loopback interface, or of ``address``."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


class Wakeup:
    """Waits for a child to end, a SIGTERM, the end of standard input, or a time-out."""

    def __init__(self) -> None:
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(write, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the sweep's to handle
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self.stop_asked = False
        self.sweep_gone = False
        self._told = b""

    @property
    def neighbours(self) -> tuple[str, ...]:
        """Cells that the sweep started beside this one, in the order in which it told of them."""
        # An empty line only says that the sweep is there.
        return tuple(name.decode() for name in self._told.split(b"\n")[:-1] if name)

    def tell(self, data: bytes) -> None:
        """What came through standard input after the job: names of cells, one a line."""
        self._told += data

    def catch_up(self) -> None:
        """Read what the sweep has told by now."""
        while not self.sweep_gone and select.select([0], [], [], 0)[0]:
            self._hear()

    def wait(self, timeout_s: float) -> None:
        watched = [self._read] if self.sweep_gone else [self._read, 0]
        ready, _, _ = select.select(watched, [], [], timeout_s)
        if self._read in ready:
            os.read(self._read, 4096)
        if 0 in ready:
            self._hear()

    def _hear(self) -> None:
        data = os.read(0, 65536)
        self.tell(data)
        self.sweep_gone = not data

    def _stop(self, number: int, frame: object) -> None:
        self.stop_asked = True


def end_orphans(supervisor: int) -> None:
    """Kill what a supervisor left behind, and reap what is ours by now.

    Its ranks and their children share its session or, where one of them made a session of its
    own, at least its mark in their environment.
    """
    for _ in range(100):
        left = _left_behind(supervisor)
        if not left:
            return
        for pid in left:
            _kill(pid, signal.SIGKILL)
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue  # somebody else's child, or already gone
        time.sleep(0.02)


def _left_behind(supervisor: int) -> list[int]:
    mark = f"{ENV_SUPERVISOR}={supervisor}".encode()
    return [
        pid
        for pid, (_, session) in _process_table().items()
        if session == supervisor or mark in _environment_of(pid)
    ]


def _command_line(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    except OSError:
        return []  # it ended while we looked


def _environment_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # another user's, or ended while we looked


def _process_table() -> dict[int, tuple[int, int]]:
    """Every process with its parent and its session, from one pass over ``/proc``."""
    table = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # it ended while we looked
        # The name in parentheses may itself hold spaces and parentheses.
        fields = stat.rpartition(")")[2].split()
        table[int(entry.name)] = (int(fields[1]), int(fields[3]))
    return table
