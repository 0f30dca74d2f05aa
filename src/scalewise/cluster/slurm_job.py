"""What a SLURM job does: one cell, under the same supervisor as on a local host.

submitit loads a :class:`CellJob` in the job's only task and calls it. The supervisor ends its cell
when its standard input closes. On a local host the sweep holds the other end; here it is this task,
on purpose and until the supervisor has answered: the sweep may end while its jobs are queued, but a
task that SLURM kills takes its cell along. Whatever slips through is in the job's cgroup.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from scalewise.cluster.hosts import Demand, granted, leased, record
from scalewise.cluster.slurm import QueueUnreachable, neighbours, preempted, requeue
from scalewise.config import build_cell
from scalewise.gpu import Host, HostMismatch, Lease
from scalewise.host import free_port
from scalewise.records import CellFolder, PlannedCell
from scalewise.supervisor import (
    CellFailed,
    Job,
    Nodes,
    NodesApart,
    Outcome,
    Settings,
    announce,
    meet,
    supervisor_command,
)
from scalewise.sweep import settings_of

if TYPE_CHECKING:
    from submitit.core.utils import DelayedSubmission


_STOP_S = 20.0


_PREEMPTED = "SLURM preempted the job"


_EARLY_S = 60.0
"""SLURM may send its warning so much before the asked-for time."""


_supervisors: list[subprocess.Popen[bytes]] = []
"""The one that runs in this process, for the signal handler; empty before and after."""


_began = time.monotonic()


@dataclass(frozen=True)
class CellJob:
    """One cell as a job. It is pickled: plain data only."""

    folder: str
    cell: PlannedCell
    wanted: Demand
    time_min: int
    signal_delay_s: int
    cwd: str
    python_path: tuple[str, ...]
    command: tuple[str, ...]

    def __call__(self) -> None:
        """Train the cell. Raises :class:`CellFailed` after recording why, so that SLURM knows."""
        folder = CellFolder(self.folder)
        if folder.result_of(self.cell.cell_id) is not None:
            return  # requeued just after its end
        try:
            refuse_other_tasks(self.wanted.nodes)
            cell = build_cell(folder.load_config())
            host = granted(cell, self.wanted)
            with leased(host, self.wanted.devices_per_node) as lease:
                settings = settings_of(cell, self.wanted.width)
                job = self._job(settings, lease, host, place(folder, self.wanted.nodes))
                outcome = supervise(job, lease.descriptors)
            if was_ended(outcome) and was_preempted():
                self._make_way(folder)
        except (HostMismatch, NodesApart) as mismatch:
            record(folder, str(mismatch))
            raise CellFailed(str(mismatch)) from None
        if outcome.state != "done":
            raise CellFailed(f"{self.cell.name}: {outcome.message}")

    def checkpoint(self) -> DelayedSubmission:
        """submitit calls this when SLURM warns of preemption or of the time limit.

        It has the supervisor end and record the cell, and returns what to run if it comes back.
        """
        from submitit.core.utils import DelayedSubmission

        folder = CellFolder(self.folder)
        number = folder.next_attempt_number()
        for process in _supervisors:
            process.terminate()
            process.wait(_STOP_S)
        if number == folder.next_attempt_number() and folder.result_of(self.cell.cell_id) is None:
            # It was told before it could listen, and has recorded nothing.
            record(folder, "ended while it was starting", "interrupted")
        self._say_why(folder)
        return DelayedSubmission(self)

    def _make_way(self, folder: CellFolder) -> None:
        """Record that the job was preempted, and have SLURM run it again.

        SLURM itself does so only with PreemptMode=REQUEUE, and not if the job ends by itself in
        the time of grace (GraceTime): that would count as a failure.
        """
        if os.environ.get("SLURM_NODEID", "0") != "0":
            return
        attempts = list(folder.attempts())
        folder.save_attempt(
            replace(attempts[-1], outcome="interrupted", cause="preempted", message=_PREEMPTED)
        )
        # It does so already, or may not: then the sweep submits the cell anew.
        with suppress(QueueUnreachable):
            requeue(os.environ["SLURM_JOB_ID"])

    def _job(self, settings: Settings, lease: Lease, host: Host, nodes: Nodes | None) -> Job:
        return Job(
            folder=self.folder,
            cell=self.cell,
            settings=settings,
            slots=lease.slots,
            cwd=self.cwd,
            python_path=self.python_path,
            command=self.command,
            driver=host.driver,
            topology=host.topology,
            co_tenants=_neighbours(),
            nodes=nodes,
            samples_devices=True,
        )

    def _say_why(self, folder: CellFolder) -> None:
        """Put what SLURM wanted into the attempt that the supervisor has just recorded."""
        attempts = list(folder.attempts())
        if not attempts or attempts[-1].cause != "interrupted":
            return
        left_s = self.time_min * 60 - (time.monotonic() - _began)
        if left_s > self.signal_delay_s + _EARLY_S:
            told = replace(attempts[-1], cause="preempted", message=_PREEMPTED)
        else:
            told = replace(
                attempts[-1],
                outcome="failed",
                cause="timeout",
                message=f"not done within its time limit, hydra.launcher.time_min={self.time_min}",
            )
        folder.save_attempt(told)


def refuse_other_tasks(nodes: int) -> None:
    """Raises :class:`HostMismatch` where the job has not exactly one task a node."""
    tasks = os.environ.get("SLURM_NTASKS", "1")
    if tasks != str(nodes):
        raise HostMismatch(
            f"SLURM_NTASKS={tasks}: each task would start all ranks of its node; allowed: {nodes}, "
            "one a node, which scalewise asks for itself (SLURM_* or SBATCH_* variables or the "
            "cluster's defaults say otherwise)"
        )


def place(folder: CellFolder, count: int) -> Nodes | None:
    """Where this node stands in the cell; None for a cell on one. Raises :class:`NodesApart`."""
    if count == 1:
        return None
    # A requeued job keeps its id.
    key = f"{os.environ['SLURM_JOB_ID']}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    index = int(os.environ["SLURM_NODEID"])
    if index > 0:
        return meet(folder, key, index, count)
    return announce(folder, key, count, socket.gethostname(), free_port("0.0.0.0"))


def was_ended(outcome: Outcome) -> bool:
    """Whether it was no fault of the cell: stopped, or its supervisor killed while it started."""
    return outcome.state == "interrupted" or outcome.cause == "supervisor"


def was_preempted() -> bool:
    """Whether SLURM says that it took this job off its node for the sake of another."""
    try:
        return preempted(os.environ["SLURM_JOB_ID"])
    except (KeyError, QueueUnreachable):
        return False


def supervise(job: Job, locks: tuple[int, ...] = ()) -> Outcome:
    """Run the supervisor to its end, holding its liveness pipe.

    ``locks``: descriptors that it and its ranks inherit.
    """
    number = "" if job.nodes is None or job.nodes.index == 0 else str(job.nodes.index)
    errors = Path(job.folder) / f"supervisor{number}.err"
    with errors.open("wb") as stderr, _warning_blocked():
        process = subprocess.Popen(
            supervisor_command(locks),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            pass_fds=locks,
        )
    assert process.stdin is not None and process.stdout is not None
    _supervisors.append(process)
    try:
        process.stdin.write(job.to_line())
        process.stdin.flush()
        answer = process.stdout.read()
        process.wait()
    except BrokenPipeError:
        answer = b""
        process.wait()
    finally:
        # The last reference: from here on the supervisor would end its cell.
        process.stdin.close()
        process.stdout.close()
        _supervisors.remove(process)
    if answer.endswith(b"\n"):
        return Outcome.from_line(answer)
    message = f"the supervisor ended with status {process.returncode}; see {errors.name}"
    record(CellFolder(job.folder), message, "supervisor")
    return Outcome("failed", message, cause="supervisor")


@contextmanager
def _warning_blocked() -> Iterator[None]:
    """Start children deaf to SLURM's warning, which goes to every process of a job.

    A blocked signal stays blocked across exec; it would otherwise end ranks and supervisor before
    this task can tell them. Blocked rather than ignored: none that arrives meanwhile is lost.
    """
    number = getattr(signal, f"SIG{os.environ.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')}")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _neighbours() -> tuple[str, ...]:
    try:
        return neighbours(os.environ["SLURMD_NODENAME"], os.environ["SLURM_JOB_ID"])
    except (KeyError, QueueUnreachable):
        return ("unknown: SLURM did not say who else is on this node",)
