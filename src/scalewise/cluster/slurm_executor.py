"""Runs the cells of a sweep as SLURM jobs: submits, watches queue and records, takes the answers.

It runs where jobs are submitted, and needs nothing from that host but SLURM's commands and the
shared file system. Should it be killed, its jobs go on; the same command with ``sweep.resume=``
finds them again and submits none of them twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from scalewise.cluster.hosts import ClusterDemand, Order, attempt_since, demand
from scalewise.cluster.slurm import (
    ENDED,
    MAX_ARRAY,
    JobState,
    QueueUnreachable,
    SlurmConfig,
    cancel,
    make_executor,
    require_slurm,
    states,
    submit,
)
from scalewise.cluster.slurm_job import CellJob
from scalewise.config import ConfigError
from scalewise.gpu import HostMismatch
from scalewise.records import CellFolder, Ending, RecordError, SweepFolder, load_json, save_json
from scalewise.supervisor import Origin, log_end
from scalewise.sweep import Cell, Executor, Note, QueuedCell, RunningCell, memory_advice

_ASK_EVERY_S = 0.5
_LOOK_S = 0.5
_MORE_MEMORY = "to ask SLURM for more of the host's: a larger hydra.launcher.mem_gb_per_device"


@dataclass(frozen=True)
class Submission:
    """``slurm.json`` in a cell's folder: the job that runs it."""

    job_id: str
    submitted_at: float
    """Unix time."""
    first_attempt: int
    """Attempts from this number on are this job's; a requeued job has several."""
    wanted: ClusterDemand
    log: str
    """File of the lines that the job itself printed, before and after its ranks."""


@dataclass(eq=False)
class SlurmCell(RunningCell):
    """A cell that is a job, or a task of a job array."""

    submission: Submission | None = None
    """None until it is submitted."""
    state: JobState = field(default_factory=lambda: JobState("PENDING"))
    started: float | None = field(default=None, kw_only=True)
    ended: float | None = None
    """Since when SLURM says that it has ended, by the clock of its start."""

    @property
    def age_s(self) -> float | None:
        if self.started is None:
            return None
        return (time.monotonic() if self.ended is None else self.ended) - self.started

    @property
    def sent(self) -> Submission:
        assert self.submission is not None
        return self.submission

    def follow(self, state: JobState) -> bool:
        """Take note of SLURM's word; returns whether the job was requeued."""
        now, self.state = time.monotonic(), state
        if state.state == "RUNNING" and self.started is None:
            self.started = now
        if state.ended and self.ended is None:
            self.ended = now
        if state.state != "PENDING" or self.started is None:
            return False
        self.started = None
        return True

    def ending(self, settle_s: float) -> Ending | None:
        """Its result, or the end of a job that left none; None while either may come."""
        if self.folder.is_done(self.cell.planned.cell_id):
            return Ending("done", elapsed_s=self.folder.load_result().elapsed_s)
        if self.ended is None:
            return None
        # The job's last file may reach this host later than SLURM's word of its end.
        never_ran = self.started is None and self.state.state in ("CANCELLED", "DEADLINE")
        is_late = never_ran or time.monotonic() - self.ended > settle_s
        if self.last_attempt() is None and not is_late:
            return None
        ended = self.record_end()
        return ended if ended.elapsed_s is not None else replace(ended, elapsed_s=self.age_s)

    def last_attempt(self) -> Ending | None:
        """The record of the job's last run; None if that died without a word."""
        running = self.folder.find_running_attempt()
        first = self.sent.first_attempt
        return attempt_since(self.folder, max(first, running.number if running else first))

    def record_end(self) -> Ending:
        """Write SLURM's word into the job's attempt, and make one where it left none."""
        state, job = self.state.state, self.sent.job_id
        attempt = self.last_attempt()
        if attempt is None:
            attempt = self._attempt_without()
        else:
            attempt = replace(attempt, message=f"{attempt.message} (SLURM job {job}: {state})")
        attempt = replace(attempt, **ENDED.get(state, {}))
        if state == "OUT_OF_MEMORY":
            # SLURM's word is of the host's memory, of which another job may be given more. A
            # supervisor that saw the kill, and lived, has said already what needs less.
            less = memory_advice(self.cell.request.cell, self.world_size)
            told = [attempt.message, _MORE_MEMORY]
            told += [less] if less and less not in attempt.message else []
            attempt = replace(attempt, message="; ".join(told))
        return self.folder.save_attempt(attempt)

    def _attempt_without(self) -> Ending:
        """The attempt of a job that recorded none: all that is known is SLURM's word."""
        job, log = self.sent.job_id, self.sent.log
        message = f"SLURM job {job} ended as {self.state.state} without a result; see {log}"
        lines, since = log_end(Path(log)), self.sent.submitted_at
        return Ending("failed", "supervisor", message, last_lines=lines, started_at=since)


class SlurmExecutor(Executor[SlurmCell]):
    """A SLURM cluster. Every cell is submitted at once."""

    CONFIG = SlurmConfig
    config: SlurmConfig

    def __init__(self, config: SlurmConfig) -> None:
        super().__init__(config)
        self._asked = 0.0
        self._is_reachable = True

    def open(self, folder: SweepFolder, locks: tuple[int, ...], note: Note) -> None:
        require_slurm()
        self._folder, self._note = folder, note

    def demand(self, cell: Cell) -> ClusterDemand:
        return demand(cell.request.cell, self.config)

    def find_running(self, cell: Cell, folder: CellFolder) -> SlurmCell | None:
        name, path = cell.planned.name, folder.path / "slurm.json"
        if not path.exists():
            return None
        try:
            submission = load_json(path, Submission)
        except RecordError as error:  # of another version too, whose job may still wait
            raise ConfigError(
                f"sweep.resume: {name} may still be a job of SLURM's, and its record does not say "
                f"which ({error}); end that job, if there is one, and remove the record"
            ) from None
        job_id = submission.job_id
        try:
            state = states([job_id])[job_id]
        except QueueUnreachable as error:
            raise ConfigError(
                f"sweep.resume: {name} may still be SLURM job {job_id}, and SLURM does not answer "
                f"({error}); try again when it does"
            ) from None
        if state.ended:
            return None
        self._note(f"         {name} still is SLURM job {job_id}")
        return SlurmCell(cell, folder, submission.wanted, submission, state)

    def start(self, queued: QueuedCell) -> SlurmCell:
        """Its job is submitted at the next look, in one array with others of the same demand."""
        return SlurmCell(queued.cell, queued.folder, queued.demand)

    def poll(self, running: Sequence[SlurmCell]) -> list[tuple[SlurmCell, Ending]]:
        ended = self._submit([cell for cell in running if cell.submission is None])
        time.sleep(_LOOK_S)
        ended |= self._ask_queue([cell for cell in running if cell.submission is not None])
        for cell in running:
            ending = None if cell in ended else cell.ending(self.config.settle_s)
            if ending is not None:
                ended[cell] = ending
        return list(ended.items())

    def _submit(self, cells: Sequence[SlurmCell]) -> dict[SlurmCell, Ending]:
        """Submit arrays of cells, round by round; returns the endings of those SLURM refuses."""
        refused: dict[SlurmCell, Ending] = {}
        for array in job_arrays(cells):
            try:
                self._send(array)
            except HostMismatch as mismatch:
                refused |= {cell: _skipped(cell, str(mismatch)) for cell in array}
        return refused

    def _send(self, cells: Sequence[SlurmCell]) -> None:
        """Submit one array, its tasks in the order of the plan. Raises :class:`HostMismatch`."""
        wanted = cells[0].demand
        executor = make_executor(self._folder.path.resolve(), self.config, wanted)
        origin, jobs = Origin.of_this_process(), []
        first = [cell.folder.next_attempt_number() for cell in cells]
        for cell in cells:
            order = Order(str(cell.folder.path.resolve()), cell.cell.planned, wanted, origin)
            jobs.append(CellJob(order, self.config.time_min, self.config.signal_delay_s))
        for cell, number, job in zip(cells, first, submit(executor, jobs), strict=True):
            log = str(job.paths.stdout)
            cell.submission = Submission(job.job_id, time.time(), number, wanted, log)
            save_json(cell.folder.path / "slurm.json", cell.submission)

    def _ask_queue(self, cells: Sequence[SlurmCell]) -> dict[SlurmCell, Ending]:
        """Take note of SLURM's word; returns the endings of jobs that would wait for ever."""
        now = time.monotonic()
        if not cells or now - self._asked < self.config.poll_s:
            return {}
        self._asked = now
        hopeless = {}
        try:
            answer = states([cell.sent.job_id for cell in cells])
            for cell in cells:
                state = answer[cell.sent.job_id]
                if state.hopeless:
                    cancel([cell.sent.job_id])
                    hopeless[cell] = _skipped(
                        cell,
                        f"SLURM has no place for {cell.demand} for {self.config.time_min} min "
                        f"({state.reason}); change hydra.launcher (partition, devices_per_node, "
                        "time_min)",
                    )
                elif cell.follow(state):
                    name, job_id = cell.cell.planned.name, cell.sent.job_id
                    self._note(f"requeued {name} by SLURM (job {job_id})")
            self._is_reachable = True
        except QueueUnreachable as error:
            if self._is_reachable:
                self._note(f"SLURM does not answer, its jobs go on: {error}")
            self._is_reachable = False
        return hopeless

    def cancel(self, running: Sequence[SlurmCell], deadline: float) -> None:
        """Cancel every job. It may need longer than until ``deadline`` to follow the order."""
        jobs = {cell.sent.job_id: cell for cell in running if cell.submission is not None}
        try:
            cancel(jobs)
            while time.monotonic() < deadline:
                answer = states(jobs)
                for job_id, cell in jobs.items():
                    state = answer[job_id]
                    cell.state = state if state.ended else JobState("CANCELLED")
                if all(state.ended for state in answer.values()):
                    break
                time.sleep(_ASK_EVERY_S)
        except QueueUnreachable as error:
            self._note(
                f"the jobs may go on, SLURM does not answer ({error}): scancel {' '.join(jobs)}"
            )
            return
        for cell in jobs.values():
            if not cell.folder.is_done(cell.cell.planned.cell_id):
                cell.record_end()


def job_arrays(cells: Sequence[SlurmCell]) -> Iterator[list[SlurmCell]]:
    """The job arrays of ``cells`` by round and demand, none larger than SLURM takes."""
    groups: dict[tuple[int, ClusterDemand], list[SlurmCell]] = {}
    for one in cells:
        groups.setdefault((one.cell.planned.repeat, one.demand), []).append(one)
    for group in groups.values():
        for first in range(0, len(group), MAX_ARRAY):
            yield group[first : first + MAX_ARRAY]


def _skipped(cell: SlurmCell, why: str) -> Ending:
    return cell.folder.save_attempt(Ending("skipped", "host", why))
