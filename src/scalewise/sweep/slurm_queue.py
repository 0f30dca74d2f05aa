"""SLURM's own word on a job: the one seam to its commands.

The controller's memory is asked first, because accounting is often switched off; it forgets a job
some minutes after its end (MinJobAge), and then accounting is asked, where there is any.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from scalewise.config import ConfigError

GONE = "GONE"
"""Neither the controller nor accounting knows the job: it has ended, and nobody says how."""

ENDED = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
        "PREEMPTED", "REVOKED", "TIMEOUT", GONE,
    }
)  # fmt: skip
"""States after which a job does not run again. One that is requeued is PENDING instead."""

HOPELESS = frozenset(
    {
        "AccountNotAllowed", "BadConstraints", "DependencyNeverSatisfied", "InvalidAccount",
        "InvalidQOS", "PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit",
        "QOSNotAllowed",
    }
)  # fmt: skip
"""Reasons of waiting that waiting does not end: most clusters accept jobs that no node can hold."""

_ANSWER_S = 60.0


class QueueUnreachable(Exception):  # noqa: N818 - it says what is wrong
    """The controller did not answer. Jobs go on without it: ask again later."""


def require_slurm() -> None:
    """Raises :class:`ConfigError` where SLURM's commands are not installed."""
    missing = [name for name in ("sbatch", "squeue", "scancel") if shutil.which(name) is None]
    if missing:
        raise ConfigError(
            f"hydra/launcher=slurm: {', '.join(missing)} not found; run it on a host of the "
            "cluster, or use hydra.launcher.print_only=true"
        )


@dataclass(frozen=True)
class JobState:
    """How a job stands."""

    state: str
    """SLURM's long name, e.g. ``RUNNING`` or ``OUT_OF_MEMORY``."""
    reason: str = ""
    """Why it waits, e.g. ``Resources``."""

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def hopeless(self) -> bool:
        """Whether it waits for what this cluster, as it is set up, does not have."""
        return self.state == "PENDING" and self.reason in HOPELESS


def states(job_ids: Collection[str]) -> dict[str, JobState]:
    """The state of each job, by id (``12`` or ``12_3``). Raises :class:`QueueUnreachable`."""
    known = _controller(job_ids)
    forgotten = [job for job in job_ids if job not in known]
    if forgotten:
        known |= _accounting(forgotten)
    return {job: known.get(job, JobState(GONE)) for job in job_ids}


def cancel(job_ids: Iterable[str]) -> None:
    """Ask SLURM to end jobs. Raises :class:`QueueUnreachable`; an ended job is no error."""
    wanted = list(job_ids)
    if wanted:
        _run("scancel", "--quiet", *wanted)


def preempted(job_id: str) -> bool:
    """Whether SLURM has taken a job off its nodes for the sake of another, or is about to.

    The time of it is forgotten when the job runs again. Raises :class:`QueueUnreachable`.
    """
    told = _run("squeue", "--noheader", f"--jobs={job_id}", "--Format=PreemptTime")
    return told.strip() not in ("", "N/A")


def requeue(job_id: str) -> None:
    """Ask SLURM to run a job again. Raises :class:`QueueUnreachable`, also where it refuses."""
    _run("scontrol", "requeue", job_id)


def neighbours(node: str, own_id: str) -> tuple[str, ...]:
    """Other running jobs on a node, as SLURM shows them to this user."""
    found = _run("squeue", "--noheader", "--states=RUNNING", f"--nodelist={node}", "--format=%A")
    return tuple(sorted({f"SLURM job {job}" for job in found.split()} - {f"SLURM job {own_id}"}))


def _controller(job_ids: Collection[str]) -> dict[str, JobState]:
    answer = _run(
        "squeue", "--noheader", "--array", "--states=all",
        f"--user={os.getuid()}", "--format=%i|%T|%r",
    )  # fmt: skip
    found = {}
    for line in answer.splitlines():
        job, state, reason = line.strip().split("|", 2)
        if job in job_ids:
            found[job] = JobState(state, reason)
    return found


def _accounting(job_ids: Collection[str]) -> dict[str, JobState]:
    """What accounting says; nothing where it is switched off."""
    if shutil.which("sacct") is None:
        return {}
    try:
        answer = _run(
            "sacct", "--noheader", "--parsable2", "--allocations",
            "--format=JobID,State", f"--jobs={','.join(job_ids)}",
        )  # fmt: skip
    except QueueUnreachable:
        return {}
    found = {}
    for line in answer.splitlines():
        job, _, state = line.strip().partition("|")
        # "CANCELLED by 1000" names the user.
        found[job] = JobState(state.split()[0] if state else GONE)
    return found


def _run(*command: str) -> str:
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_ANSWER_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise QueueUnreachable(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise QueueUnreachable(f"{command[0]}: {said[-1] if said else done.returncode}")
    return done.stdout
