"""Runs the cells of a sweep as SLURM jobs: submits, watches queue and records, takes the answers.

It runs where jobs are submitted, and needs nothing from that host but SLURM's commands and the
shared file system. Should it be killed, its jobs go on; the same command with ``sweep.resume=``
finds them again and submits none of them twice.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from scalewise.cluster.hosts import Demand, Order, attempt_since, demand, result_of
from scalewise.cluster.slurm import (
    JobState,
    QueueUnreachable,
    SlurmConfig,
    cancel,
    in_arrays,
    make_executor,
    require_slurm,
    script,
    states,
    submit,
)
from scalewise.cluster.slurm_job import CellJob
from scalewise.config import ConfigError
from scalewise.gpu import HostMismatch
from scalewise.records import (
    Attempt,
    Cause,
    CellFolder,
    RecordError,
    SweepFolder,
    load_json,
    save_json,
)
from scalewise.supervisor import Origin, Outcome
from scalewise.sweep import (
    MORE_FOR_THE_JOB,
    Cell,
    Display,
    Engine,
    SweepReport,
    memory_advice,
    progress_of,
    remaining_of,
)

_LAST_LINES = 20
_ASK_EVERY_S = 0.5
_LOOK_S = 0.5

_ENDS: Mapping[str, tuple[Literal["failed", "interrupted"], Cause]] = {
    "PREEMPTED": ("interrupted", "preempted"),
    "CANCELLED": ("interrupted", "interrupted"),
    "TIMEOUT": ("failed", "timeout"),
    "DEADLINE": ("failed", "timeout"),
    "OUT_OF_MEMORY": ("failed", "oom"),
    "NODE_FAIL": ("failed", "host"),
    "BOOT_FAIL": ("failed", "host"),
}
"""States that say more of a job's end than its supervisor can."""


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

    def cost_s(self) -> float | None:
        """Seconds of a job that ended without a result: as its record has them, like a result's.

        By SLURM's word where its supervisor left none: of a job that an earlier sweep process sent,
        that is only the time since this one found it. None where it came and went between two looks
        at the queue; its last record may be of a run before SLURM requeued it, spent by now.
        """
        if self.started is None or self.ended is None:
            return None
        attempt = self.last_attempt()
        if attempt is None or attempt.elapsed_s is None:
            return self.ran_s(self.ended)
        return attempt.elapsed_s

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
        if attempt is None:
            attempt = self._attempt_without()
        else:
            attempt = replace(attempt, message=f"{attempt.message} (SLURM job {job}: {state})")
        if state in _ENDS:
            outcome, cause = _ENDS[state]
            attempt = replace(attempt, outcome=outcome, cause=cause)
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
        told, log = self.submission, Path(self.submission.log)
        try:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []  # a job that never started has none
        message = f"SLURM job {told.job_id} ended as {self.state.state} without a result; see {log}"
        return Attempt(
            number=self.folder.next_attempt_number(),
            outcome="failed",
            cause="supervisor",
            message=message,
            rank=None,
            exit_code=None,
            last_lines=tuple(lines[-_LAST_LINES:]),
            started_at=told.submitted_at,
            finished_at=time.time(),
        )


def interrupt(
    jobs: Sequence[Sent], deadline: float, note: Callable[[str], None]
) -> dict[str, Outcome]:
    """Cancel every job; returns how each cell ended, by its id.

    Args:
        jobs: all that were sent and not ended yet.
        deadline: until when their supervisors have time to record it, by ``time.monotonic``. A job
            may need longer to follow the order.
        note: told which jobs may go on, where SLURM does not answer.
    """
    ids = [sent.submission.job_id for sent in jobs]
    cancelled = True
    try:
        cancel(ids)
        while time.monotonic() < deadline:
            answer = states(ids)
            for sent in jobs:
                state = answer[sent.submission.job_id]
                sent.state = state if state.ended else JobState("CANCELLED")
            if all(state.ended for state in answer.values()):
                break
            time.sleep(_ASK_EVERY_S)
    except QueueUnreachable as error:
        note(f"the jobs may go on, SLURM does not answer ({error}): scancel {' '.join(ids)}")
        cancelled = False
    outcomes = {}
    for sent in jobs:
        cell_id = sent.cell.planned.cell_id
        done = sent.folder.result_of(cell_id) is not None
        if cancelled and not done:
            sent.record_end()
        outcomes[cell_id] = Outcome("done" if done else "interrupted")
    return outcomes


def print_scripts(
    folder: SweepFolder, config: SlurmConfig, demands: Mapping[Demand, Sequence[Cell]]
) -> None:
    """Write to standard output what would be submitted, one script an array."""
    for wanted, cells in demands.items():
        executor = make_executor(folder.path.resolve(), config, wanted)
        for part in in_arrays(len(cells)):
            names = "".join(f"#   {i}: {cells[j].planned.name}\n" for i, j in enumerate(part))
            text = script(executor, len(part))
            sys.stdout.write(f"# {wanted} each, by array task:\n{names}{text}\n")


def send(
    folder: SweepFolder, config: SlurmConfig, cells: Sequence[Cell], wanted: Demand
) -> list[Sent]:
    """Submit cells of one demand as one array, its tasks in the order of the plan.

    Raises :class:`HostMismatch` where SLURM refuses it.
    """
    executor = make_executor(folder.path.resolve(), config, wanted)
    origin = Origin.of_this_process()
    folders = [folder.cell(cell.planned.name) for cell in cells]
    first = [one.next_attempt_number() for one in folders]
    orders = [
        Order(str(own.path.resolve()), cell.planned, wanted, origin)
        for cell, own in zip(cells, folders, strict=True)
    ]
    jobs = submit(
        executor, [CellJob(order, config.time_min, config.signal_delay_s) for order in orders]
    )
    sent = []
    for cell, own, number, job in zip(cells, folders, first, jobs, strict=True):
        submission = Submission(job.job_id, time.time(), number, wanted, str(job.paths.stdout))
        save_json(own.path / "slurm.json", submission)
        sent.append(Sent(cell, own, submission, JobState("PENDING")))
    return sent


class SlurmEngine(Engine):
    """One sweep on a cluster. Everything but starting and watching is the local engine's."""

    def __init__(self, folder: Path, config: SlurmConfig, display: Display) -> None:
        super().__init__(folder, config.policy, display)
        self._config = config
        self._demands: dict[Demand, list[Cell]] = {}
        self._sent: list[Sent] = []
        self._asked = 0.0
        self._unreachable = False

    def run(self, cells: Sequence[Cell]) -> SweepReport:
        """As :meth:`Engine.run`; with ``print_only``, print the scripts and run nothing."""
        if self._config.print_only:
            self._print(cells)
            return self.report
        require_slurm()
        return super().run(cells)

    def _to_run(self) -> list[Cell]:
        waiting = [cell for cells in self._demands.values() for cell in cells]
        return waiting + [sent.cell for sent in self._sent]

    # Before anything starts

    def _print(self, cells: Sequence[Cell]) -> None:
        try:
            for cell in cells:
                self._ask_for(cell)
        except HostMismatch as mismatch:
            raise ConfigError(str(mismatch)) from None
        print_scripts(self.folder, self._config, self._demands)
        if self.left_open:
            sys.stdout.write("# and later what these decide (batch_size=auto, strategy=auto)\n")
        self.display.close()

    def _ask_for(self, cell: Cell) -> None:
        wanted = demand(cell.request.cell, self._config)
        self._demands.setdefault(wanted, []).append(cell)

    def _take_over(self, cell: Cell, folder: CellFolder) -> bool:
        """Whether a job of an earlier sweep process still runs the cell: then it is watched."""
        try:
            submission = load_json(folder.path / "slurm.json", Submission)
        except RecordError:
            return False
        try:
            state = states([submission.job_id])[submission.job_id]
        except QueueUnreachable as error:
            raise ConfigError(
                f"sweep.resume: {cell.planned.name} may still be SLURM job {submission.job_id}, "
                f"and SLURM does not answer ({error}); try again when it does"
            ) from None
        if state.ended:
            return False
        self.display.note(f"         {cell.planned.name} still is SLURM job {submission.job_id}")
        self._sent.append(Sent(cell, folder, submission, state))
        return True

    # While jobs run

    def _loop(self, report: SweepReport) -> None:
        while self._sent or self._demands:
            self._submit(report)
            for sent in list(self._sent):
                self._look(sent, report)
            self._ask_queue(report)
            self._show()
            if self._sent:
                time.sleep(_LOOK_S)

    def _submit(self, report: SweepReport) -> None:
        """One array for each demand."""
        for wanted in list(self._demands):
            group = self._affordable(self._demands.pop(wanted), wanted, report)
            if not group:
                continue
            for part in in_arrays(len(group)):
                cells = [group[i] for i in part]
                try:
                    self._sent += send(self.folder, self._config, cells, wanted)
                except HostMismatch as mismatch:
                    self._skip(cells, report, str(mismatch))

    def _affordable(
        self, cells: Sequence[Cell], wanted: Demand, report: SweepReport
    ) -> Sequence[Cell]:
        """The cells that ``sweep.max_gpu_hours`` lets us submit now; others wait, or are left."""
        if self.budget.limit_hours is None:
            return cells
        ahead = [(s.submission.wanted.width, self._at_most_s(s.cell)) for s in self._sent]
        expected = [self._expected_s(cell) for cell in cells]
        afforded = self.budget.share_out(wanted.width, expected, self._limit_s, ahead)
        if afforded.later:
            self._demands[wanted] = [cells[i] for i in afforded.later]
        for i in afforded.never:
            self._leave_out(cells[i], report)
        return [cells[i] for i in afforded.now]

    @property
    def _limit_s(self) -> float:
        return 60.0 * self._config.time_min

    def _at_most_s(self, cell: Cell) -> float:
        expected = self._expected_s(cell)
        return self._limit_s if expected is None else expected

    def _ask_queue(self, report: SweepReport) -> None:
        now = time.monotonic()
        if not self._sent or now - self._asked < self._config.poll_s:
            return
        self._asked = now
        try:
            answer = states([sent.submission.job_id for sent in self._sent])
        except QueueUnreachable as error:
            if not self._unreachable:
                self.display.note(f"SLURM does not answer, its jobs go on: {error}")
            self._unreachable = True
            return
        self._unreachable = False
        for sent in list(self._sent):
            state = answer[sent.submission.job_id]
            if state.hopeless:
                self._give_up(sent, state, report)
            else:
                self._note(sent, state, now)

    def _give_up(self, sent: Sent, state: JobState, report: SweepReport) -> None:
        """Take back a job that would wait for ever."""
        try:
            cancel([sent.submission.job_id])
        except QueueUnreachable:
            return  # the next look tries again
        self._sent.remove(sent)
        why = (
            f"SLURM has no place for {sent.submission.wanted} for {self._config.time_min} min "
            f"({state.reason}); change hydra.launcher (partition, devices_per_node, time_min)"
        )
        self._skip([sent.cell], report, why)

    def _note(self, sent: Sent, state: JobState, now: float) -> None:
        width = sent.submission.wanted.width
        if state.state == "RUNNING" and sent.started is None:
            sent.started = now
            self.display.started(sent.cell, width)
        if state.state == "PENDING" and sent.started is not None:
            self._spend(sent, sent.ran_s(now))
            sent.started = None
            self.display.note(
                f"requeued {sent.cell.planned.name} by SLURM (job {sent.submission.job_id})"
            )
        sent.state = state
        if state.ended and sent.ended is None:
            sent.ended = now

    def _look(self, sent: Sent, report: SweepReport) -> None:
        """Take a cell's result, or decide that its job has ended without one."""
        if sent.folder.result_of(sent.cell.planned.cell_id) is not None:
            self._finish(sent, report, *result_of(sent.folder))
            return
        if sent.ended is None:
            return
        # The job's last file may reach this host later than SLURM's word of its end.
        if sent.last_attempt() is None and not sent.is_late(self._config.settle_s):
            return
        seconds = sent.cost_s()
        outcome = sent.record_end()
        if sent.preempted():
            self._submit_anew(sent, seconds)
        else:
            self._finish(sent, report, outcome, seconds)

    def _submit_anew(self, sent: Sent, seconds: float | None) -> None:
        """A preempted job that SLURM did not requeue: the cell waits for a job of its own."""
        self._sent.remove(sent)
        self._spend(sent, seconds)
        self._ask_for(sent.cell)
        self.display.note(
            f"again    {sent.cell.planned.name}: SLURM preempted job {sent.submission.job_id}"
        )

    def _finish(
        self, sent: Sent, report: SweepReport, outcome: Outcome, seconds: float | None
    ) -> None:
        self._sent.remove(sent)
        self._spend(sent, seconds)
        self._end(report, sent.cell, outcome, seconds)

    def _spend(self, sent: Sent, seconds: float | None) -> None:
        if seconds is not None:  # else it came and went between two looks at the queue
            self.budget.spend(sent.submission.wanted.width, seconds)

    def _show(self) -> None:
        running = [sent for sent in self._sent if sent.started is not None and sent.ended is None]
        progress = [
            progress_of(s.cell.planned.name, s.folder, s.submission.wanted.width) for s in running
        ]
        now = time.monotonic()
        waiting = [(c, w.width) for w, cells in self._demands.items() for c in cells]
        waiting += [(s.cell, s.submission.wanted.width) for s in self._sent if s.started is None]
        remaining = [remaining_of(cell, width) for cell, width in waiting]
        remaining += [
            remaining_of(s.cell, p.width, s.ran_s(now), p)
            for s, p in zip(running, progress, strict=True)
        ]
        self._tick(progress, remaining)

    # When the sweep is interrupted

    def _end_all(self, report: SweepReport, deadline: float) -> None:
        """Cancel every job; their supervisors record it, until ``deadline``."""
        report.outcomes.update(interrupt(self._sent, deadline, self.display.note))
        for cells in self._demands.values():
            for cell in cells:
                report.outcomes[cell.planned.cell_id] = Outcome("interrupted")
