"""The rank processes of one cell: how they are started, and what has become of them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from scalewise.config import CellConfig
from scalewise.records import CellFolder
from scalewise.sweep.interface import interface_towards
from scalewise.sweep.job import Job
from scalewise.sweep.process_tree import ENV_SUPERVISOR, command_line, descendants, kill, reap
from scalewise.sweep.rank_start import ENV_INHERITED, RankStart, Starter, spawn
from scalewise.train.rank import across_hosts, rendezvous, scrubbed
from scalewise.train.rendezvous import ENV_LISTENER, listen, on_loopback
from scalewise.train.stacks import REQUEST
from scalewise.validation import to_plain
from scalewise.wrap import wrap_command

ENV_WRAPPED = "SCALEWISE_WRAPPED"
"""``1`` where another program (``hydra.launcher.wrap``) starts the rank."""


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
        self,
        job: Job,
        cell: CellConfig,
        folder: CellFolder,
        starter: Starter = spawn,
        locks: tuple[int, ...] = (),
    ) -> None:
        self._starter = starter
        self._locks = locks
        self._job = job
        self._cell = cell
        self._folder = folder
        self._children: list[subprocess.Popen[bytes] | None] = []
        self.processes: list[RankProcess] = []

    def start(self) -> None:
        """Start one process a slot; they find each other on a port of the first host."""
        if self._job.nodes is not None:
            self._start_all(self._job.nodes.port, None)
            return
        with listen() as listener:
            port = listener.getsockname()[1]
            # A rank alone meets nobody; a program around it may close what it does not know.
            handed = self._job.world_size > 1 and self._cell.sweep.wrap is None
            if not handed:
                listener.close()
            self._start_all(port, listener if handed else None)

    def _start_all(self, port: int, listener: socket.socket | None) -> None:
        """``listener``: what rank 0 accepts the others on, and is not left open here."""
        for local_rank in range(len(self._job.slots)):
            rank = self._job.first_rank + local_rank
            out, err = self._folder.log_path(rank, "out"), self._folder.log_path(rank, "err")
            out.parent.mkdir(parents=True, exist_ok=True)
            command = self._command(rank, local_rank)
            environment = self._environment(rank, local_rank, port)
            inherited = self._locks
            if rank == 0 and listener is not None:
                inherited += (listener.fileno(),)
                environment[ENV_LISTENER] = str(listener.fileno())
            environment[ENV_INHERITED] = ",".join(map(str, inherited))
            pid, child = self._starter(
                RankStart(command, environment, self._job.cwd, out, err, inherited)
            )
            if rank == 0 and listener is not None:
                listener.close()  # neither this process nor another rank is to keep it open
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
            trainer = next((pid for pid in below if command_line(pid) == own), None)
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
            kill(pid, REQUEST)

    def _environment(self, rank: int, local_rank: int, port: int) -> dict[str, str]:
        job, slot = self._job, self._job.slots[local_rank]
        threads = str(max(1, len(slot.cores)))
        environment = {
            **(on_loopback(job.slots) if job.nodes is None else {}),
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
