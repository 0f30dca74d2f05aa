"""The rank processes of one cell: how they are started, and what has become of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scalewise.host import (
    ENV_INHERITED,
    ENV_LISTENER,
    ENV_NOT_FORKED,
    ENV_SCRIPT,
    ENV_STARTED,
    ENV_SUPERVISOR,
    ENV_WRAPPED,
    exit_now,
    find_below,
    fork_hindrance,
    interface_towards,
    listen,
    on_loopback,
    reap,
    rename,
    rendezvous,
    scrubbed,
    usable_cores,
    worker_command,
    wrap_command,
)
from scalewise.records import CellFolder, DeviceInfo, to_plain
from scalewise.supervisor.job import Job


@dataclass(frozen=True)
class RankStart:
    """Everything that starts one rank process."""

    command: Sequence[str]
    """As typed; its last word is the cell's folder."""
    environment: Mapping[str, str]
    cwd: str
    out: Path
    err: Path
    inherited: tuple[int, ...] = ()
    """Descriptors of locks that it holds as long as it lives, and of a socket."""


Starter = Callable[[RankStart], int]
"""Starts a rank as a child of this process, and returns its id."""


def spawn(start: RankStart) -> int:
    with start.out.open("wb") as out, start.err.open("wb") as err:
        child = subprocess.Popen(
            start.command,
            env=start.environment,
            cwd=start.cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            pass_fds=start.inherited,
        )
    child.returncode = 0  # reaped by :meth:`Ranks.collect`: Popen is to warn of no lost child
    return child.pid


def fork(main: Callable[[], int], start: RankStart) -> int:
    """Start a rank, whose program is ``main``, as a fork of this process.

    It has imported torch. Where it may not be forked, the rank is a fresh process and says why.
    """
    why = fork_hindrance(start.environment)
    if why is not None:
        return spawn(replace(start, environment={**start.environment, ENV_NOT_FORKED: why}))
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        run_and_exit(lambda: _train(main, start))
    return pid


def run_and_exit(main: Callable[[], int]) -> None:
    """Run ``main`` in a fork and end it there: it never returns into the copy of its caller."""
    status = 1
    try:
        status = main()
    except BaseException:
        traceback.print_exc()
    finally:
        exit_now(status)


def redirect(stdin: int, stdout: int, stderr: int) -> None:
    """Make these the standard streams of this process, and close them under their own numbers."""
    for number, descriptor in enumerate((stdin, stdout, stderr)):
        os.dup2(descriptor, number)
    for descriptor in {stdin, stdout, stderr} - {0, 1, 2}:
        os.close(descriptor)


def _train(main: Callable[[], int], start: RankStart) -> int:
    """Take on what a fresh process would have got from its start, and train."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    logs = (os.open(path, flags, 0o666) for path in (start.out, start.err))
    redirect(os.open(os.devnull, os.O_RDONLY), *logs)
    os.environ.clear()
    os.environ.update({**start.environment, ENV_STARTED: "forked"})
    os.chdir(start.cwd)
    sys.argv[:] = [start.command[0], start.command[-1]]
    rename(f"rank {os.environ['RANK']}", start.command)
    import torch

    # OpenMP read the variable long ago, in the process that this is a fork of.
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    return main()


@dataclass
class RankProcess:
    rank: int
    pid: int
    exit_code: int | None = None
    ended_at: float | None = None
    """Unix time at which its end was seen."""


class Ranks:
    """The rank processes of one cell, started from the main thread of their supervisor."""

    def __init__(
        self, job: Job, folder: CellFolder, starter: Starter = spawn, locks: tuple[int, ...] = (),
        as_torchrun: bool = False,
    ) -> None:  # fmt: skip
        """``as_torchrun``: a script on one device gets torchrun's variables all the same."""
        self._is_alone = job.world_size == 1 and job.settings.rehearsed_ranks is None
        self.as_torchrun = as_torchrun and self._is_alone
        self._starter = starter
        self._locks = locks
        self._job = job
        self._folder = folder
        self.processes: list[RankProcess] = []

    def start(self) -> None:
        """Start one process a slot; they find each other on a port of the first host."""
        if self._job.nodes is not None:
            self._start_all(self._job.nodes.port, None)
            return
        with listen() as listener:
            port = listener.getsockname()[1]
            # A rank alone meets nobody; a program around it may close what it does not know, and
            # torch in a script knows nothing of it.
            settings = self._job.settings
            handed = self._job.world_size > 1 and settings.wrap is None and not settings.script
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
            pid = self._starter(
                RankStart(command, environment, self._job.origin.cwd, out, err, inherited)
            )
            if rank == 0 and listener is not None:
                listener.close()  # neither this process nor another rank is to keep it open
            self.processes.append(RankProcess(rank, pid))

    def _command(self, rank: int, local_rank: int) -> list[str]:
        wrap = self._job.settings.wrap
        if wrap is None:
            return self._own
        around = wrap_command(wrap, rank, local_rank, self._job.folder)
        return [sys.executable, "-P", "-m", "scalewise.host.processes", *around, *self._own]

    @property
    def _own(self) -> list[str]:
        """The command of a rank, without a profiler around it."""
        script, name = self._job.settings.script, "-".join(Path(self._job.folder).parts[-2:])
        return [w.replace("{run}", name) for w in script] or worker_command(self._job.folder)

    def trainers(self) -> dict[int, int]:
        """Rank to the process that trains, of those alive: under a profiler it is not our child.

        A rank whose process has not been started by its profiler yet is absent.
        """
        if self._job.settings.wrap is None:
            return {p.rank: p.pid for p in self.alive}
        found = ((p.rank, find_below(p.pid, self._own)) for p in self.alive)
        return {rank: pid for rank, pid in found if pid is not None}

    def collect(self) -> None:
        """Note every rank that has ended since the last call."""
        by_pid = {p.pid: p for p in self.processes}
        for pid, code in reap().items():
            if pid in by_pid:
                by_pid[pid].exit_code = code
                by_pid[pid].ended_at = time.time()

    @property
    def alive(self) -> list[RankProcess]:
        return [p for p in self.processes if p.exit_code is None]

    @property
    def failed(self) -> list[RankProcess]:
        return [p for p in self.processes if p.exit_code not in (None, 0)]

    def _threads(self, slot: DeviceInfo) -> str:
        """Of one operator on CPUs: those of a CPU device; beside a GPU, as its users have it."""
        if slot.kind == "cuda":
            if "OMP_NUM_THREADS" in os.environ:
                return os.environ["OMP_NUM_THREADS"]
            if self._job.settings.script and not self._is_alone:
                return "1"  # torchrun's
        return str(max(1, len(slot.cores)))

    def _environment(self, rank: int, local_rank: int, port: int) -> dict[str, str]:
        job, slot = self._job, self._job.slots[local_rank]
        threads = self._threads(slot)
        environment = {
            **(on_loopback(slot.kind == "cuda") if job.nodes is None else {}),
            **scrubbed(os.environ),
            **job.settings.environment,
            **self._meeting(rank, local_rank, port),
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            ENV_SUPERVISOR: str(os.getpid()),
            ENV_WRAPPED: "0" if job.settings.wrap is None else "1",
            "SCALEWISE_DEVICE": json.dumps(to_plain(slot)),
            "SCALEWISE_DEVICES": json.dumps(to_plain(job.slots)),
            "SCALEWISE_TOPOLOGY": json.dumps(dict(job.topology)),
            "SCALEWISE_HOSTS": str(1 if job.nodes is None else job.nodes.count),
            "SCALEWISE_COMMAND": json.dumps(list(job.origin.command)),
            # The ranks see their own devices and no others.
            "CUDA_VISIBLE_DEVICES": ",".join(slot.uuid for slot in job.slots if slot.uuid),
        }
        if job.not_forked is not None:
            environment[ENV_NOT_FORKED] = job.not_forked
        if job.driver is not None:
            environment["SCALEWISE_DRIVER"] = job.driver
        return environment

    def _meeting(self, rank: int, local_rank: int, port: int) -> dict[str, str]:
        """Variables by which a rank knows itself and the others, and finds its modules."""
        job, rehearsed = self._job, self._job.settings.rehearsed_ranks
        told = rendezvous(rank, local_rank, job.world_size, port)
        if job.nodes is not None:
            told |= {"MASTER_ADDR": job.nodes.address, "NODE_RANK": str(job.nodes.index)}
            interface = interface_towards(job.nodes.address)
            if interface is not None and "GLOO_SOCKET_IFNAME" not in os.environ:
                told["GLOO_SOCKET_IFNAME"] = interface
        if not job.settings.script:
            return {**told, "PYTHONPATH": os.pathsep.join(job.origin.python_path)}
        place = {
            "folder": job.folder,
            "rank": rank,
            "local_rank": local_rank,
            "world_size": job.world_size,
            "hosts": 1 if job.nodes is None else job.nodes.count,
            "cwd": job.origin.cwd,
            "cores": len(usable_cores()),
            "as_torchrun": self.as_torchrun,
            "rehearsed": rehearsed is not None,
        }
        local = {"LOCAL_WORLD_SIZE": str(len(job.slots)), "TORCHELASTIC_RUN_ID": "scalewise"}
        if rehearsed is not None:
            local |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(rehearsed))
        # Alone it is what the user would start: with these, many scripts wrap their model in DDP.
        plain = self._is_alone and not self.as_torchrun
        return {**({} if plain else {**told, **local}), ENV_SCRIPT: json.dumps(place)}
