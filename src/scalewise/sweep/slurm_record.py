"""What is known of a cell's SLURM job, and how its end is put into the cell's records."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from scalewise.records import Attempt, CellFolder
from scalewise.sweep.demand import Demand
from scalewise.sweep.ended_elsewhere import attempt_since
from scalewise.sweep.job import Outcome
from scalewise.sweep.memory_advice import MORE_FOR_THE_JOB, memory_advice
from scalewise.sweep.plan import Cell
from scalewise.sweep.slurm_queue import JobState

_LAST_LINES = 20


@dataclass(frozen=True)
class Submission:
    """``slurm.json`` in a cell's folder: the job that runs it."""

    job_id: str
    submitted_at: float
    """Unix time."""
    first_attempt: int
    """Attempts from this number on are this job's; a requeued job has several."""
    wanted: Demand
    log: str
    """What the job itself printed, before and after its ranks."""


@dataclass
class Sent:
    """A cell that is a job."""

    cell: Cell
    folder: CellFolder
    submission: Submission
    state: JobState
    started: float | None = None
    ended: float | None = None
    """Since when SLURM says that it has ended, by this process's clock."""

    def ran_s(self, now: float) -> float | None:
        """Seconds it has run for by ``now``, or by its end; None for a job that has not started."""
        if self.started is None:
            return None
        return (now if self.ended is None else self.ended) - self.started

    def is_late(self, settle_s: float) -> bool:
        """Whether nothing more is to be expected of a job that has ended."""
        never_ran = self.started is None and self.state.state in ("CANCELLED", "DEADLINE")
        waited = time.monotonic() - (self.ended or 0.0)
        return never_ran or waited > settle_s

    def last_attempt(self) -> Attempt | None:
        """What the job's last run has recorded; None if that died without a word."""
        running = self.folder.load_running()
        first = self.submission.first_attempt
        return attempt_since(self.folder, max(first, running.number if running else first))

    def preempted(self) -> bool:
        """Whether the job was taken off its node for another one's sake, by its last record."""
        attempt = self.last_attempt()
        return attempt is not None and attempt.cause == "preempted"

    def record_end(self) -> Outcome:
        """Write SLURM's word into the job's attempt, and make one where it left none."""
        state, job = self.state.state, self.submission.job_id
        attempt = self.last_attempt()
        # A supervisor that saw the kill, and lived, has said already what needs less.
        advised = attempt is not None and attempt.cause == "oom"
        attempt = self._attempt_without() if attempt is None else _with_state(attempt, state, job)
        if state == "OUT_OF_MEMORY":
            attempt = replace(attempt, message=f"{attempt.message}; {self._memory_advice(advised)}")
        self.folder.save_attempt(attempt)
        return Outcome(attempt.outcome, attempt.message)

    def _memory_advice(self, advised: bool) -> str:
        """SLURM's word is of the host's memory, of which another job may be given more."""
        less = memory_advice(self.cell.request.cell, self.submission.wanted.width)
        return MORE_FOR_THE_JOB if advised or not less else f"{MORE_FOR_THE_JOB}; {less}"

    def _attempt_without(self) -> Attempt:
        """The attempt of a job that recorded none: all that is known is SLURM's word."""
        state, told = self.state.state, self.submission
        return _classified(
            Attempt(
                number=self.folder.next_attempt_number(),
                outcome="failed",
                cause="supervisor",
                message=f"SLURM job {told.job_id} ended as {state} without a result; "
                f"see {told.log}",
                rank=None,
                exit_code=None,
                last_lines=_last_lines(Path(told.log)),
                started_at=told.submitted_at,
                finished_at=time.time(),
            ),
            state,
        )


def _last_lines(log: Path) -> tuple[str, ...]:
    try:
        return tuple(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:])
    except OSError:
        return ()  # a job that never started has none


def _with_state(attempt: Attempt, state: str, job: str) -> Attempt:
    """What the job itself recorded, with how SLURM saw its end."""
    told = f"{attempt.message} (SLURM job {job}: {state})"
    if state in ("FAILED", "COMPLETED"):
        return replace(attempt, message=told)
    return _classified(replace(attempt, message=told), state)


def _classified(attempt: Attempt, state: str) -> Attempt:
    if state == "PREEMPTED":
        return replace(attempt, outcome="interrupted", cause="preempted")
    if state == "CANCELLED":
        return replace(attempt, outcome="interrupted", cause="interrupted")
    if state in ("TIMEOUT", "DEADLINE"):
        return replace(attempt, outcome="failed", cause="timeout")
    if state == "OUT_OF_MEMORY":
        return replace(attempt, outcome="failed", cause="oom")
    if state in ("NODE_FAIL", "BOOT_FAIL"):
        return replace(attempt, outcome="failed", cause="host")
    return attempt
