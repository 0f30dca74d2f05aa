"""What runs a sweep, wherever its cells run: plan, stages, retries, records, what is said of it.

Where cells wait, how they start and how they are watched is the business of each engine:
``local_engine`` for this host, ``slurm_engine`` and its like for others. The process of an engine
never touches a GPU and never trains: whatever happens to a cell happens to other processes.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from scalewise.config import ConfigError
from scalewise.gpu.election import FileLock
from scalewise.records import Attempt, CellFolder, RecordError, SweepFolder
from scalewise.sweep.budget import Budget, budget_of
from scalewise.sweep.display import Display, Progress, Tally
from scalewise.sweep.estimate import Measured, Outlook, Remaining
from scalewise.sweep.finished_times import duration_of
from scalewise.sweep.job import Outcome
from scalewise.sweep.lease import HostMismatch
from scalewise.sweep.mirror import Mirror
from scalewise.sweep.plan import Cell, Request, plan
from scalewise.sweep.plan_file import add_to_plan
from scalewise.sweep.process_tree import become_subreaper
from scalewise.sweep.repeats import adaptive_requests, next_rounds
from scalewise.sweep.resume import is_done, is_rerun, planned_repeats
from scalewise.sweep.retry import Retries
from scalewise.sweep.stages import Stages, interleaved, split
from scalewise.sweep.unrecorded import gone, is_gone, record_failure

Policy = Literal["exclusive", "packed"]

_END_S = 9.0
_ASK_S = 0.2
"""Whoever asks for the status of a sweep has its lock for far less than this."""


class SweepBusy(ConfigError):  # noqa: N818 - it says what is wrong
    """Another process is running a sweep in this folder."""


@dataclass
class SweepReport:
    """What became of a sweep."""

    folder: Path
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """By cell id."""
    cells: list[Cell] = field(default_factory=list)
    """Those asked for, and those that ``repeats``, ``strategy`` and ``batch_size=auto`` added."""
    chosen: dict[str, str] = field(default_factory=dict)
    """``config_id`` of a request that a first stage decided to that of what was trained for it."""

    def cells_of(self, config_id: str) -> list[Cell]:
        """The cells that answer a request."""
        answered_by = self.chosen.get(config_id, config_id)
        return [cell for cell in self.cells if cell.planned.config_id == answered_by]

    def count(self, state: str) -> int:
        return sum(o.state == state for o in self.outcomes.values())


class Engine(ABC):
    """One sweep.

    Args:
        folder: the sweep's folder.
        policy: ``exclusive`` runs one cell at a time on a host, ``packed`` fills it.
        display: where progress is said.
    """

    def __init__(self, folder: Path, policy: Policy, display: Display) -> None:
        self.folder = SweepFolder(folder)
        self.policy: Policy = policy
        self.display = display
        self.report = SweepReport(folder)
        """What has ended so far; it stays when :meth:`run` is interrupted."""
        self.again: frozenset[str] = frozenset()
        """Ids of done cells that are to run once more; their results are set aside."""
        self.remarks: list[str] = []
        """Said first, once the folder is ours."""
        self.left_open: tuple[Request, ...] = ()
        """Requests for ``strategy=auto`` or ``batch_size=auto``, whose short runs or searches are
        among the cells to run."""
        self.budget = Budget(None)
        self._stages = Stages(self.folder, display.note)
        self._measured: list[Measured] = []
        """Durations of the folder's done cells, earlier ones first."""
        self._retries = Retries()
        self._outlook = Outlook()

    def run(self, cells: Sequence[Cell]) -> SweepReport:
        """Run every cell that is not done. Raises KeyboardInterrupt after ending all of them."""
        lock = FileLock(self._prepared_lock())
        if not _acquired(lock):
            raise SweepBusy(
                f"sweep.resume: another process is running a sweep in {self.folder.path}; "
                "wait for it or choose another folder"
            )
        for line in self.remarks:
            self.display.note(line)
        become_subreaper()
        report = self.report
        mirror = None
        try:
            self._tally = Tally(total=len(cells))
            report.cells += cells
            self.budget = budget_of(self.folder, [c.request.cell.sweep for c in cells])
            first, waiting = split(cells)
            self._admit_all(first, report, alone=len(cells) == 1)
            add_to_plan(self.folder, cells, self.policy, self._slots())
            pending = [*self._to_run(), *waiting]
            pending += [c for c in cells if c.request.cell.repeats == "auto"]
            later = [c.request for c in pending] + list(self.left_open)
            if any(one.cell.tracking.trackers for one in later):
                mirror = Mirror(self.folder.path, self.display.note)
            self._loop(report)
            self._second_stage(self._stages.batch_sizes(self.left_open), waiting, report)
            self._second_stage(self._stages.strategies(self.left_open), (), report)
            self._repeat_until_decided(report)
            if mirror is not None:
                mirror.finish()
            if is_gone(self.folder):
                raise gone(self.folder)
        except BaseException as error:
            deadline = time.monotonic() + _END_S
            if mirror is not None:
                mirror.let_go()
            self._end_all(report, deadline)
            if mirror is not None:
                mirror.abandon(deadline)
            if isinstance(error, (OSError, RecordError)) and is_gone(self.folder):
                raise gone(self.folder) from error
            raise
        finally:
            self.display.close()
            lock.release()
        return report

    # What each engine does in its own way

    @abstractmethod
    def _ask_for(self, cell: Cell) -> None:
        """Queue a cell. Raises :class:`HostMismatch` where it cannot be run."""

    def _take_over(self, cell: Cell, folder: CellFolder) -> bool:
        """Whether an earlier sweep process left the cell running: then it is watched."""
        return False

    @abstractmethod
    def _to_run(self) -> list[Cell]:
        """The cells that are queued or run."""

    @abstractmethod
    def _loop(self, report: SweepReport) -> None:
        """Run what is queued to its end."""

    @abstractmethod
    def _end_all(self, report: SweepReport, deadline: float) -> None:
        """End every running cell: they record themselves as interrupted, until ``deadline``."""

    def _slots(self) -> int | None:
        """Devices of the host that runs the cells; None where that is not one host."""
        return None

    # The plan

    def _prepared_lock(self) -> Path:
        try:
            self.folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"hydra.sweep.dir: {self.folder.path} cannot be made: {error}"
            ) from error
        return self.folder.lock_path

    def _admit_all(self, cells: Sequence[Cell], report: SweepReport, alone: bool = False) -> None:
        """Queue cells; what is to run once more is set aside first."""
        for cell in cells:
            if cell.planned.cell_id in self.again:
                self.folder.cell(cell.planned.name).set_aside()
            self._stages.write_evidence(cell)
            self._admit(cell, report, alone)

    def _admit(self, cell: Cell, report: SweepReport, alone: bool) -> None:
        """Queue a cell, unless it is done, runs already, or cannot be run.

        Raises :class:`ConfigError` for the last, where it is the only one.
        """
        folder = self.folder.cell(cell.planned.name)
        if self._was_done(cell, report):
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

    def _requeue(self, cell: Cell) -> bool:
        """Queue a cell once more; False where it cannot be run any longer."""
        try:
            self._ask_for(cell)
        except HostMismatch:
            return False
        return True

    def _was_done(self, cell: Cell, report: SweepReport) -> bool:
        """Whether the folder holds the cell's result; then that is its outcome."""
        result = self.folder.cell(cell.planned.name).result_of(cell.planned.cell_id)
        if result is None:
            return False
        self._tally.already_done += 1
        folder = self.folder.cell(cell.planned.name)
        self._measured.append(duration_of(folder, result, cell.planned.workload))
        self._end(report, cell, Outcome("done", objective=result.objective), None)
        return True

    def _second_stage(
        self, requests: Sequence[Request], waiting: Sequence[Cell], report: SweepReport
    ) -> None:
        """Run what a first stage has decided, its repeats interleaved with those of ``waiting``."""
        report.chosen.update(self._stages.chosen)
        known = {cell.planned.config_id for cell in report.cells}
        decided = [one for one in requests if one.config_id not in known]
        seed = decided[0].cell.sweep.order_seed if decided else 0
        planned = plan(decided, seed, planned_repeats(self.folder))
        # The devices were examined with the first stage.
        new = [cell for cell in planned if cell.request.cell.workload == "train"]
        for cell in new:
            again = is_rerun(cell.planned, cell.request.cell.sweep.rerun)
            if again and is_done(self.folder, cell.planned):
                self.again |= {cell.planned.cell_id}
        report.cells += new
        self._tally.total += len(new)
        if new:
            add_to_plan(self.folder, new, self.policy, self._slots())
        if new or waiting:
            self._admit_all(interleaved([*waiting, *new]), report)
            self._loop(report)

    def _repeat_until_decided(self, report: SweepReport) -> None:
        """Stage two of ``repeats=auto``: rounds are added as long as the records are undecided."""
        requests = adaptive_requests(report.cells)
        while requests:
            step = next_rounds(self.folder, requests, report.outcomes.keys())
            for repeats in step.repeats:
                self.display.note(f"repeats  {repeats}")
            if not step.cells:
                return
            report.cells += step.cells
            self._tally.total += len(step.cells)
            # Before they run, so that a sweep that is resumed knows of them.
            add_to_plan(self.folder, step.cells, self.policy, self._slots())
            self._admit_all(step.cells, report)
            self._loop(report)

    # How cells end

    def _end(
        self,
        report: SweepReport,
        cell: Cell,
        outcome: Outcome,
        seconds: float | None,
        final: bool = False,
    ) -> None:
        """A try has ended: for good if it is ``final`` or no other may end better."""
        if outcome.state == "failed" and not final:
            folder = self.folder.cell(cell.planned.name)
            retry = self._retries.grant(folder, cell.request.cell.sweep.retries)
            if retry is not None and self._requeue(cell):
                self.display.note(f"again    {cell.planned.name}: {outcome.message} ({retry})")
                return
        if outcome.state == "done" and seconds is not None:
            self._measured.append(self._taken(cell, seconds))
        if not outcome.is_recorded:
            outcome = record_failure(self.folder, cell, outcome, seconds)
        report.outcomes[cell.planned.cell_id] = outcome
        self._tally.count(outcome)
        self.display.ended(cell, outcome, seconds)

    def _taken(self, cell: Cell, seconds: float) -> Measured:
        planned = cell.planned
        folder = self.folder.cell(planned.name)
        result = folder.result_of(planned.cell_id)
        if result is None:
            return Measured(planned.config_id, seconds, planned.workload)
        return duration_of(folder, result, planned.workload)

    def _skip(self, cells: Sequence[Cell], report: SweepReport, why: str) -> None:
        for cell in cells:
            self._record(self.folder.cell(cell.planned.name), "skipped", "host", why)
            self._end(report, cell, Outcome("skipped", why), None)

    def _record(
        self,
        folder: CellFolder,
        outcome: Literal["failed", "skipped", "interrupted"],
        cause: Literal["host", "supervisor", "interrupted"],
        message: str,
        lines: Sequence[str] = (),
        started_at: float | None = None,
    ) -> None:
        now = time.time()
        number = folder.next_attempt_number()
        begin = now if started_at is None else started_at
        folder.save_attempt(
            Attempt(number, outcome, cause, message, None, None, tuple(lines), begin, now)
        )

    def _tick(
        self, progress: Sequence[Progress], remaining: Callable[[], Sequence[Remaining]]
    ) -> None:
        """Say how far the sweep is; ``remaining`` is what runs and what waits."""
        left = self._outlook.seconds_left(
            self._measured, remaining, self._slots(), self.policy == "packed"
        )
        self.display.tick(self._tally, progress, left)


def _acquired(lock: FileLock) -> bool:
    """Whether the lock is ours, after waiting for those who only ask whether somebody has it."""
    deadline = time.monotonic() + _ASK_S
    while not lock.try_acquire():
        if time.monotonic() > deadline:
            return False
        time.sleep(_ASK_S / 10)
    return True
