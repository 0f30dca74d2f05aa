"""Runs the cells of a sweep as SLURM jobs: submits, watches queue and records, takes the answers.

It runs where jobs are submitted, and needs nothing from that host but SLURM's commands and the
shared file system. Should it be killed, its jobs go on; the same command with ``sweep.resume=``
finds them again and submits none of them twice.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scalewise.config import ConfigError
from scalewise.records import Attempt, CellFolder, RecordError
from scalewise.records.files import load_json, save_json
from scalewise.sweep.display import Display, progress_of
from scalewise.sweep.engine import Engine, SweepReport
from scalewise.sweep.job import Outcome
from scalewise.sweep.lease import HostMismatch
from scalewise.sweep.measured import throughput_of
from scalewise.sweep.plan import Cell
from scalewise.sweep.slurm import (
    Demand,
    SlurmConfig,
    demand,
    in_arrays,
    make_executor,
    script,
    submit,
)
from scalewise.sweep.slurm_job import CellJob, is_done
from scalewise.sweep.slurm_queue import JobState, QueueUnreachable, cancel, require_slurm, states

_LOOK_S = 0.5


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
class _Sent:
    cell: Cell
    folder: CellFolder
    submission: Submission
    state: JobState
    started: float | None = None
    ended: float | None = None
    """Since when SLURM says that it has ended, by this process's clock."""


class SlurmEngine(Engine):
    """One sweep on a cluster. Everything but starting and watching is the local engine's."""

    def __init__(self, folder: Path, config: SlurmConfig, display: Display) -> None:
        super().__init__(folder, config.policy, display)
        self._config = config
        self._demands: dict[Demand, list[Cell]] = {}
        self._sent: list[_Sent] = []
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
        for wanted, group in self._demands.items():
            executor = make_executor(self.folder.path.resolve(), self._config, wanted)
            for part in in_arrays(len(group)):
                names = "".join(f"#   {i}: {group[j].planned.name}\n" for i, j in enumerate(part))
                text = script(executor, len(part))
                sys.stdout.write(f"# {wanted} each, by array task:\n{names}{text}\n")
        self.display.close()

    def _ask_for(self, cell: Cell) -> None:
        wanted = demand(cell.request.cell, self._config)
        self._demands.setdefault(wanted, []).append(cell)

    def _admit(self, cell: Cell, report: SweepReport, alone: bool) -> None:
        """Queue a cell, unless it is done, already a job, or cannot be asked for."""
        folder = self.folder.cell(cell.planned.name)
        if is_done(folder, cell.planned):
            self._tally.already_done += 1
            self._end(report, cell, Outcome("done", objective=folder.load_result().objective), None)
            return
        try:
            if self._take_over(cell, folder):
                return
            self._ask_for(cell)
        except HostMismatch as mismatch:
            if alone:
                raise ConfigError(str(mismatch)) from None
            folder.save_config(cell.request.plain)
            self._skip([cell], report, str(mismatch))
            return
        folder.save_config(cell.request.plain)

    def _skip(self, cells: Sequence[Cell], report: SweepReport, why: str) -> None:
        for cell in cells:
            self._record(self.folder.cell(cell.planned.name), "skipped", "host", why)
            self._end(report, cell, Outcome("skipped", why), None)

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
        self._sent.append(_Sent(cell, folder, submission, state))
        return True

    # While jobs run

    def _loop(self, report: SweepReport) -> None:
        self._submit(report)
        while self._sent:
            for sent in list(self._sent):
                self._look(sent, report)
            self._ask_queue(report)
            self._show()
            if self._sent:
                time.sleep(_LOOK_S)

    def _submit(self, report: SweepReport) -> None:
        """One array for each demand, its tasks in the order of the plan."""
        for wanted in list(self._demands):
            group = self._demands.pop(wanted)
            executor = make_executor(self.folder.path.resolve(), self._config, wanted)
            for part in in_arrays(len(group)):
                cells = [group[i] for i in part]
                folders = [self.folder.cell(cell.planned.name) for cell in cells]
                first = [folder.next_attempt_number() for folder in folders]
                try:
                    jobs = submit(executor, self._jobs(cells, folders, wanted))
                except HostMismatch as mismatch:
                    self._skip(cells, report, str(mismatch))
                    continue
                for cell, folder, number, job in zip(cells, folders, first, jobs, strict=True):
                    submission = Submission(
                        job.job_id, time.time(), number, wanted, str(job.paths.stdout)
                    )
                    save_json(folder.path / "slurm.json", submission)
                    self._sent.append(_Sent(cell, folder, submission, JobState("PENDING")))

    def _jobs(
        self, cells: Sequence[Cell], folders: Sequence[CellFolder], wanted: Demand
    ) -> list[CellJob]:
        return [
            CellJob(
                folder=str(folder.path.resolve()),
                cell=cell.planned,
                wanted=wanted,
                time_min=self._config.time_min,
                signal_delay_s=self._config.signal_delay_s,
                cwd=str(Path.cwd()),
                python_path=tuple(str(Path(p or ".").resolve()) for p in sys.path),
                command=tuple(sys.argv),
            )
            for cell, folder in zip(cells, folders, strict=True)
        ]

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

    def _give_up(self, sent: _Sent, state: JobState, report: SweepReport) -> None:
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

    def _note(self, sent: _Sent, state: JobState, now: float) -> None:
        width = sent.submission.wanted.width
        if state.state == "RUNNING" and sent.started is None:
            sent.started = now
            self.display.started(sent.cell, width)
        if state.state == "PENDING" and sent.started is not None:
            sent.started = None
            self.display.note(
                f"requeued {sent.cell.planned.name} by SLURM (job {sent.submission.job_id})"
            )
        sent.state = state
        if state.ended and sent.ended is None:
            sent.ended = now

    def _look(self, sent: _Sent, report: SweepReport) -> None:
        """Take a cell's result, or decide that its job has ended without one."""
        if is_done(sent.folder, sent.cell.planned):
            result = sent.folder.load_result()
            rate = throughput_of(sent.folder, result.world_size)
            took = result.finished_at - result.started_at
            missing = "" if result.objective is not None else "its objective was not measured"
            self._finish(sent, report, Outcome("done", missing, result.objective, rate), took)
            return
        if sent.ended is None:
            return
        # The job's last file may reach this host later than SLURM's word of its end.
        if self._last_attempt(sent) is None and not self._is_late(sent):
            return
        seconds = None if sent.started is None else sent.ended - sent.started
        self._finish(sent, report, self._record_end(sent), seconds)

    def _is_late(self, sent: _Sent) -> bool:
        never_ran = sent.started is None and sent.state.state in ("CANCELLED", "DEADLINE")
        waited = time.monotonic() - (sent.ended or 0.0)
        return never_ran or waited > self._config.settle_s

    def _finish(
        self, sent: _Sent, report: SweepReport, outcome: Outcome, seconds: float | None
    ) -> None:
        self._sent.remove(sent)
        self._end(report, sent.cell, outcome, seconds)

    def _last_attempt(self, sent: _Sent) -> Attempt | None:
        """The last one this job has recorded."""
        attempts = [a for a in sent.folder.attempts() if a.number >= sent.submission.first_attempt]
        return attempts[-1] if attempts else None

    def _record_end(self, sent: _Sent) -> Outcome:
        """Write SLURM's word into the job's attempt, and make one where it left none."""
        state, job = sent.state.state, sent.submission.job_id
        attempt = self._last_attempt(sent)
        attempt = _attempt_of(sent) if attempt is None else _with_state(attempt, state, job)
        sent.folder.save_attempt(attempt)
        return Outcome(attempt.outcome, attempt.message)

    def _show(self) -> None:
        running = [sent for sent in self._sent if sent.started is not None and sent.ended is None]
        now = time.monotonic()
        progress = [
            progress_of(s.cell.planned.name, s.folder, s.submission.wanted.width) for s in running
        ]
        ages = [now - s.started for s in running if s.started is not None]
        self.display.tick(self._tally, progress, self._tally.seconds_left(ages))

    # When the sweep is interrupted

    def _end_all(self, report: SweepReport, deadline: float) -> None:
        """Cancel every job; their supervisors record it, until ``deadline``."""
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            cancelled = self._cancel_all(deadline)
            for sent in self._sent:
                if is_done(sent.folder, sent.cell.planned):
                    result = sent.folder.load_result()
                    outcome = Outcome("done", objective=result.objective)
                else:
                    outcome = Outcome("interrupted")
                    if cancelled:
                        self._record_end(sent)
                report.outcomes[sent.cell.planned.cell_id] = outcome
            for cells in self._demands.values():
                for cell in cells:
                    report.outcomes[cell.planned.cell_id] = Outcome("interrupted")
        finally:
            signal.signal(signal.SIGINT, previous)

    def _cancel_all(self, deadline: float) -> bool:
        """Whether SLURM took the order; a job may need longer than ``deadline`` to follow it."""
        try:
            cancel(sent.submission.job_id for sent in self._sent)
            while time.monotonic() < deadline:
                answer = states([sent.submission.job_id for sent in self._sent])
                for sent in self._sent:
                    state = answer[sent.submission.job_id]
                    sent.state = state if state.ended else JobState("CANCELLED")
                if all(state.ended for state in answer.values()):
                    break
                time.sleep(_LOOK_S)
        except QueueUnreachable as error:
            ids = " ".join(sent.submission.job_id for sent in self._sent)
            self.display.note(f"the jobs may go on, SLURM does not answer ({error}): scancel {ids}")
            return False
        return True


def _attempt_of(sent: _Sent) -> Attempt:
    """The attempt of a job that recorded none: all that is known is SLURM's word."""
    state, told = sent.state.state, sent.submission
    return _classified(
        Attempt(
            number=sent.folder.next_attempt_number(),
            outcome="failed",
            cause="supervisor",
            message=f"SLURM job {told.job_id} ended as {state} without a result; see {told.log}",
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
        return tuple(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
    except OSError:
        return ()  # a job that never started has none


def _with_state(attempt: Attempt, state: str, job: str) -> Attempt:
    """What the job itself recorded, with how SLURM saw its end."""
    told = f"{attempt.message} (SLURM job {job}: {state})"
    if state in ("FAILED", "COMPLETED"):
        return replace(attempt, message=told)
    return _classified(replace(attempt, message=told), state)


def _classified(attempt: Attempt, state: str) -> Attempt:
    if state in ("CANCELLED", "PREEMPTED"):
        return replace(attempt, outcome="interrupted", cause="interrupted")
    if state in ("TIMEOUT", "DEADLINE"):
        return replace(attempt, outcome="failed", cause="timeout")
    if state == "OUT_OF_MEMORY":
        return replace(attempt, outcome="failed", cause="oom")
    if state in ("NODE_FAIL", "BOOT_FAIL"):
        return replace(attempt, outcome="failed", cause="host")
    return attempt
