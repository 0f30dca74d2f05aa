"""One cell as a SLURM job, under the same supervisor as on a local host.

submitit loads a :class:`CellJob` in the job's only task of a node and calls it. The supervisor ends
its cell when its standard input closes. On a local host the sweep holds the other end; here it is
this task, on purpose and until the supervisor has answered: the sweep may end while its jobs are
queued, but a task that SLURM kills takes its cell along. Whatever slips through is in the job's
cgroup.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scalewise.cluster.hosts import Order, train_here
from scalewise.cluster.slurm import QueueUnreachable, neighbours, preempted, requeue
from scalewise.gpu import HostMismatch
from scalewise.records import CellFolder, Ending
from scalewise.supervisor import CellFailed, Job, NodesApart
from scalewise.sweep import SupervisorProcess, start_supervisor

if TYPE_CHECKING:
    from submitit.core.utils import DelayedSubmission


_STOP_S = 20.0
_PREEMPTED = "SLURM preempted the job"
_EARLY_S = 60.0
"""SLURM may send its warning so much before the asked-for time."""
_supervisors: list[SupervisorProcess] = []
"""The one that runs in this process, for the signal handler; empty before and after."""
_began = time.monotonic()


@dataclass(frozen=True)
class CellJob:
    """One cell as a job. It is pickled: plain data only."""

    order: Order
    """As sent: where this node stands in the cell is known when the job runs."""
    time_min: int
    signal_delay_s: int

    def __call__(self) -> None:
        """Train the cell. Raises :class:`CellFailed` after recording why, so that SLURM knows."""
        folder = CellFolder(self.order.folder)
        if folder.is_done(self.order.cell.cell_id):
            return  # requeued just after its end
        try:
            refuse_other_tasks(self.order.wanted.nodes)
            ending = train_here(_on_this_node(self.order), _supervise)
            # No fault of the cell: stopped, or its supervisor killed while it started.
            if ending.cause in ("interrupted", "supervisor", "supervisor_lost"):
                with suppress(QueueUnreachable):
                    _make_way_if_preempted(folder)
        except (HostMismatch, NodesApart) as mismatch:
            folder.save_attempt(Ending("failed", "host", str(mismatch)))
            raise CellFailed(str(mismatch)) from None
        if ending.outcome != "done":
            raise CellFailed(f"{self.order.cell.name}: {ending.message}")

    def checkpoint(self) -> DelayedSubmission:
        """submitit calls this when SLURM warns of preemption or of the time limit.

        It has the supervisor end and record the cell, and returns what to run if it comes back.
        """
        from submitit.core.utils import DelayedSubmission

        folder = CellFolder(self.order.folder)
        number = folder.next_attempt_number()
        for supervisor in _supervisors:
            supervisor.process.terminate()
            supervisor.process.wait(_STOP_S)
        if number == folder.next_attempt_number() and not folder.is_done(self.order.cell.cell_id):
            # It was told before it could listen, and has recorded nothing.
            folder.save_attempt(Ending("interrupted", "interrupted", "ended while it was starting"))
        self._say_why(folder)
        return DelayedSubmission(self)

    def _say_why(self, folder: CellFolder) -> None:
        """Put what SLURM wanted into the attempt that the supervisor has just recorded."""
        attempts = list(folder.attempts())
        if not attempts or attempts[-1].cause != "interrupted":
            return
        if _began + self.time_min * 60 - time.monotonic() > self.signal_delay_s + _EARLY_S:
            told = replace(attempts[-1], cause="preempted", message=_PREEMPTED)
        else:
            message = f"not done within its time limit, hydra.launcher.time_min={self.time_min}"
            told = replace(attempts[-1], outcome="failed", cause="timeout", message=message)
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


def _on_this_node(order: Order) -> Order:
    """The order with where this node stands in the cell, and who else is on it."""
    job_id = os.environ.get("SLURM_JOB_ID", "")
    try:
        others = neighbours(os.environ["SLURMD_NODENAME"], job_id)
    except (KeyError, QueueUnreachable):
        others = ("unknown: SLURM did not say who else is on this node",)
    return replace(
        order,
        # A requeued job keeps its id.
        key=f"{job_id}.{os.environ.get('SLURM_RESTART_COUNT', '0')}",
        index=int(os.environ.get("SLURM_NODEID", "0")),
        address=socket.gethostname(),
        co_tenants=others,
    )


def _supervise(job: Job, locks: tuple[int, ...]) -> Ending:
    """Run the supervisor to its end, and record the end of one that could not."""
    with _warning_blocked():
        supervisor = start_supervisor(job, locks)
        _supervisors.append(supervisor)
    try:
        ending = supervisor.ending()
    finally:
        _supervisors.remove(supervisor)
    return CellFolder(job.folder).save_attempt(ending) if ending.is_lost else ending


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


def _make_way_if_preempted(folder: CellFolder) -> None:
    """Where the job was preempted, record that, and have SLURM run it again.

    SLURM itself does so only with PreemptMode=REQUEUE, and not if the job ends by itself in the
    time of grace (GraceTime): that would count as a failure.
    """
    job_id = os.environ.get("SLURM_JOB_ID", "")
    if not job_id or os.environ.get("SLURM_NODEID", "0") != "0" or not preempted(job_id):
        return
    attempts = list(folder.attempts())
    folder.save_attempt(
        replace(attempts[-1], outcome="interrupted", cause="preempted", message=_PREEMPTED)
    )
    requeue(job_id)  # it does so already, or may not: then the sweep submits the cell anew
