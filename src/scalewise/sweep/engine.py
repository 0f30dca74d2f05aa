"""Runs a sweep, wherever its cells run: one queue, one loop, stages, retries, budget, records.

Where cells run is the business of an executor: of this host, of SLURM, or of Ray. The process of
the engine never touches a GPU and never trains: whatever happens to a cell happens to other
processes.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scalewise.config import ConfigError
from scalewise.gpu import HostMismatch
from scalewise.host import FileLock, become_subreaper
from scalewise.records import SweepFolder, state_of
from scalewise.supervisor import Outcome, Retries
from scalewise.sweep.auto import (
    Stages,
    adaptive_requests,
    interleaved,
    is_open,
    later_cells,
    next_rounds,
    reruns,
    split,
)
from scalewise.sweep.display import Display, Tally, progress_of
from scalewise.sweep.executor import Ending, Executor, RunningCell, Turn
from scalewise.sweep.folder_lock import held
from scalewise.sweep.mirror import Mirror
from scalewise.sweep.plan import Cell, Request, add_to_plan
from scalewise.sweep.progress import Budget, Durations, Remaining, budget_of
from scalewise.sweep.resume import refuse_newer, set_unreadable_aside
from scalewise.sweep.running_cells import attempt_until_now, done


@dataclass
class SweepReport:
    """The outcome of a sweep."""

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

    def outcomes_of(self, config_id: str) -> list[Outcome]:
        """How each of these cells ended."""
        return [self.outcomes[cell.planned.cell_id] for cell in self.cells_of(config_id)]

    def count(self, state: str) -> int:
        return sum(o.state == state for o in self.outcomes.values())


sweeps_run: list[SweepReport] = []
"""Every sweep this process has run: the entry reports on them and derives its exit status."""


def remember(report: SweepReport) -> None:
    """Add a sweep to :data:`sweeps_run`; a sweeper that asks in batches fills one folder."""
    earlier = next((r for r in sweeps_run if r.folder == report.folder), None)
    if earlier is None:
        sweeps_run.append(report)
    else:
        earlier.outcomes.update(report.outcomes)
        earlier.cells += report.cells


_END_S = 9.0


class Engine:
    """One sweep.

    Args:
        folder: the sweep's folder.
        executor: runs its cells.
        display: takes its progress.
    """

    def __init__(self, folder: Path, executor: Executor[Any], display: Display) -> None:
        self.folder = SweepFolder(folder)
        self.executor = executor
        self.display = display
        self.report = SweepReport(folder)
        """Outcomes so far; they stay when :meth:`run` is interrupted."""
        self.again: frozenset[str] = frozenset()
        """Ids of done cells that are to run once more; their results are set aside."""
        self.remarks: list[str] = []
        """Said first, once the folder is ours."""
        self.left_open: tuple[Request, ...] = ()
        """Requests for ``strategy=auto`` or ``batch_size=auto``, whose short runs or searches are
        among the cells to run."""
        self.budget = Budget(None)
        self._waiting: list[Turn] = []
        self._running: list[RunningCell] = []
        self._announced: set[str] = set()
        """Ids of running cells whose start was said."""
        self._stages = Stages(self.folder, display.note)
        self._tally = Tally(total=0)
        self._durations = Durations()
        self._retries = Retries()

    def run(self, cells: Sequence[Cell]) -> SweepReport:
        """Run every cell that is not done. Raises KeyboardInterrupt after ending all of them."""
        lock = FileLock(self.folder.lock_path)
        with held(self.folder, lock):
            for line in self.remarks:
                self.display.note(line)
            become_subreaper()
            try:
                self.executor.open(self.folder, lock.descriptors, self.display.note)
                self._run_mirrored(cells)
            finally:
                self.executor.close()
                self.display.close()
        return self.report

    def _run_mirrored(self, cells: Sequence[Cell]) -> None:
        """Run all stages, beside a mirror if a tracker is to hear of them."""
        mirror = None
        try:
            later = self._begin(cells)
            if self._has_trackers(cells, later):
                mirror = Mirror(self.folder.path, self.display.note)
            self._loop()
            self._second_stage(filter(is_open, self.left_open), later)
            self._second_stage((one for one in self.left_open if not is_open(one)), ())
            self._repeat_until_decided()
            if mirror is not None:
                mirror.finish()
        except BaseException:
            self._break_off(mirror)
            raise

    def _begin(self, cells: Sequence[Cell]) -> Sequence[Cell]:
        """Queue the cells of the first stage, and return those that wait for it."""
        self._tally.total = len(cells)
        self.report.cells += cells
        self.budget = budget_of(self.folder, [c.request.cell.sweep for c in cells])
        first, later = split(cells)
        self._admit_all(first, alone=len(cells) == 1)
        # After they were admitted: only then does an executor know its host's slots.
        self._add_to_plan(cells)
        return later

    def _add_to_plan(self, cells: Sequence[Cell]) -> None:
        add_to_plan(self.folder, cells, self.executor.policy, self.executor.slots())

    def _has_trackers(self, cells: Sequence[Cell], later: Sequence[Cell]) -> bool:
        """Whether anything of what is still to run is handed to a tracker."""
        pending = [*self._pending(), *later]
        pending += [c for c in cells if c.request.cell.repeats == "auto"]
        requests = [c.request for c in pending] + list(self.left_open)
        return any(one.cell.tracking.trackers for one in requests)

    def _pending(self) -> list[Cell]:
        """The cells that run or wait."""
        return [one.cell for one in self._running] + [turn.cell for turn in self._waiting]

    def _break_off(self, mirror: Mirror | None) -> None:
        """End whatever runs, within :data:`_END_S` s: an interrupt, or an error of our own."""
        deadline = time.monotonic() + _END_S
        if mirror is not None:
            mirror.let_go()
        # A second Ctrl-C must not leave processes behind.
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.executor.cancel(self._running, deadline)
        finally:
            signal.signal(signal.SIGINT, previous)
        for cell in self._pending():
            cell_id = cell.planned.cell_id
            is_done = self.folder.cell(cell.planned.name).result_of(cell_id) is not None
            self.report.outcomes[cell_id] = Outcome("done" if is_done else "interrupted")
        if mirror is not None:
            mirror.abandon(deadline)

    # The plan

    def _admit_all(self, cells: Sequence[Cell], alone: bool = False) -> None:
        """Queue cells; what is to run once more is set aside first."""
        refuse_newer(self.folder, cells)
        for cell in cells:
            folder = self.folder.cell(cell.planned.name)
            if cell.planned.cell_id in self.again:
                folder.set_aside()
            elif (aside := set_unreadable_aside(folder, cell.planned)) is not None:
                self.display.note(aside)
            self._stages.write_evidence(cell)
            self._admit(cell, alone)

    def _admit(self, cell: Cell, alone: bool) -> None:
        """Queue a cell, unless it is done, runs already, or cannot be run.

        Raises :class:`ConfigError` for the last, where it is the only one.
        """
        folder = self.folder.cell(cell.planned.name)
        result = state_of(self.folder, cell.planned).result
        if result is not None:
            self._tally.already_done += 1
            self._durations.add(cell.planned.config_id, result.took_s)
            self._count(cell, self._worth(cell, Outcome("done"), None), None)
            return
        running = self.executor.find_running(cell, folder)
        if running is not None:
            self._running.append(running)
            return
        try:
            self._queue(cell)
        except HostMismatch as mismatch:
            if alone:
                raise ConfigError(str(mismatch)) from None
            folder.save_config(cell.request.plain)
            self._refuse(cell, Outcome("skipped", str(mismatch)))
            return
        folder.save_config(cell.request.plain)

    def _queue(self, cell: Cell) -> None:
        """Last in the queue: whatever disturbed an earlier try may have passed by then.

        Raises :class:`HostMismatch` where the cell can never run.
        """
        self._waiting.append(Turn(cell, self.executor.demand(cell)))

    # Later stages

    def _second_stage(self, asked: Iterable[Request], later: Sequence[Cell]) -> None:
        """Run what is decided for ``asked``, its repeats interleaved with those of ``later``."""
        requests = self._stages.decide(asked)
        self.report.chosen.update(self._stages.chosen)
        known = {cell.planned.config_id for cell in self.report.cells}
        new = later_cells(self.folder, requests, known)
        self.again |= reruns(self.folder, new)
        if new:
            self._join(new)
        if new or later:
            self._admit_all(interleaved([*later, *new]))
            self._loop()

    def _repeat_until_decided(self) -> None:
        """Stage two of ``repeats=auto``: rounds are added as long as the records are undecided."""
        requests = adaptive_requests(self.report.cells)
        while requests:
            cells, looked_at = next_rounds(self.folder, requests, self.report.outcomes.keys())
            for repeats in looked_at:
                self.display.note(f"repeats  {repeats}")
            if not cells:
                return
            self._join(cells)
            self._admit_all(cells)
            self._loop()

    def _join(self, cells: Sequence[Cell]) -> None:
        """Count cells of a later stage among the sweep's.

        Before they run, so that a sweep that is resumed knows of them.
        """
        self.report.cells += cells
        self._tally.total += len(cells)
        self._add_to_plan(cells)

    # While cells run

    def _loop(self) -> None:
        while self._waiting or self._running:
            # A cell that left the queue without a try makes room at once.
            if not self._start_cells():
                for running, ending in self.executor.poll(self._running):
                    self._finish(running, ending)
            self._show()

    def _start_cells(self) -> bool:
        """Start the cells that have room; True if one left the queue without a try."""
        has_left = False
        for turn in self.executor.order(tuple(self._waiting), self._running, self._expected_s):
            started: RunningCell | Outcome | None
            if not self._affords(turn):
                if self._running:
                    break  # what runs may take less than expected; none overtakes this one
                self._waiting.remove(turn)
                # It keeps its place in the plan for a larger budget.
                self._count(turn.cell, Outcome("unstarted", str(self.budget)), None)
                has_left = True
                continue
            try:
                started = self.executor.start(turn, self.folder.cell(turn.cell.planned.name))
            except HostMismatch as mismatch:
                started = Outcome("skipped", str(mismatch))
            if started is None:
                continue
            self._waiting.remove(turn)
            if isinstance(started, Outcome):
                self._refuse(turn.cell, started)
                has_left = True
                continue
            for other in self._running:
                if other.hosts & started.hosts:
                    other.tell(started)
                    started.tell(other)
            self._running.append(started)
            self._announce(started)
        return has_left

    def _expected_s(self, cell: Cell) -> float | None:
        """How long a cell will take, by those that have ended; None while nothing tells."""
        return self._durations.of(cell.planned.config_id)

    def _affords(self, turn: Turn) -> bool:
        """Whether ``sweep.max_gpu_hours`` lets a cell start beside those that run or are queued.

        A cell of which nothing is known counts with the time limit of the executor, if it has one.
        """
        if self.budget.limit_hours is None:
            return True
        limit_s = self.executor.limit_s
        ahead = [
            (one.width, max(one.age_s or 0.0, self._expected_s(one.cell) or limit_s or 0.0))
            for one in self._running
        ]
        expected_s = self._expected_s(turn.cell)
        if expected_s is None and ahead:
            expected_s = limit_s
        return self.budget.allows(turn.width, expected_s, ahead)

    def _announce(self, running: RunningCell) -> None:
        """Say that a cell has started, once for each of its starts."""
        cell_id = running.cell.planned.cell_id
        if running.age_s is None:
            self._announced.discard(cell_id)
        elif cell_id not in self._announced:
            self._announced.add(cell_id)
            self.display.started(running.cell, running.width)

    def _show(self) -> None:
        """Say how far the sweep is."""
        remaining = [Remaining(t.cell.planned.config_id, t.width) for t in self._waiting]
        shown = []
        for one in self._running:
            self._announce(one)
            planned, left_s = one.cell.planned, None
            if one.age_s is not None:
                shown.append(progress_of(planned.name, one.folder, one.width))
                left_s = shown[-1].seconds_left
            remaining.append(Remaining(planned.config_id, one.width, one.age_s, left_s))
        packed = self.executor.policy == "packed"
        left_s = self._durations.seconds_left(remaining, self.executor.slots(), packed)
        self.display.tick(self._tally, shown, left_s)

    # How cells end

    def _finish(self, running: RunningCell, ending: Ending) -> None:
        """A try has ended: for good, unless the cell is to run again."""
        cell, seconds = running.cell, ending.seconds
        self._running.remove(running)
        self._announced.discard(cell.planned.cell_id)
        self.budget.spend(running.width, (seconds or 0.0) + ending.lost_s)
        outcome = self._worth(cell, ending.outcome, seconds)
        self.executor.examine(running, outcome)
        why: str | None = None
        if ending.is_preempted:
            why = "no retry is counted"
        elif outcome.state == "failed":
            why = self._retries.grant(running.folder, cell.request.cell.sweep.retries)
        if why is not None:
            with suppress(HostMismatch):  # it cannot be run any longer
                self._queue(cell)
                self.display.note(f"again    {cell.planned.name}: {outcome.message} ({why})")
                return
        if outcome.state == "done" and seconds is not None:
            self._durations.add(cell.planned.config_id, seconds)
        if not outcome.is_recorded:
            outcome = self._record_failure(cell, outcome, seconds)
        self._count(cell, outcome, seconds)

    def _worth(self, cell: Cell, outcome: Outcome, seconds: float | None) -> Outcome:
        """The outcome of a cell, with what its records tell of one that is done."""
        if outcome.state != "done":
            return outcome
        folder, objective = self.folder.cell(cell.planned.name), cell.request.cell.sweep.objective
        return done(folder, cell.planned.cell_id, objective, told_before=seconds is None)

    def _count(self, cell: Cell, outcome: Outcome, seconds: float | None) -> None:
        """A cell has ended for good."""
        self._tally.count(outcome)
        self.report.outcomes[cell.planned.cell_id] = outcome
        self.display.ended(cell, outcome, seconds)

    def _refuse(self, cell: Cell, outcome: Outcome) -> None:
        """A cell has ended, failed or skipped, without a try."""
        assert outcome.state in ("failed", "skipped")
        folder = self.folder.cell(cell.planned.name)
        folder.save_attempt(attempt_until_now(folder, outcome.state, "host", outcome.message))
        self._count(cell, outcome, None)

    def _record_failure(self, cell: Cell, outcome: Outcome, seconds: float | None) -> Outcome:
        """Write down what ended a cell, now that its ranks are gone; as it is on a full disk."""
        folder = self.folder.cell(cell.planned.name)
        began_at = time.time() - (seconds or 0.0)
        attempt = attempt_until_now(folder, "failed", "supervisor", outcome.message, (), began_at)
        try:
            folder.save_attempt(attempt)
        except OSError:
            return outcome  # the last lines of the command say what no record does
        return replace(outcome, is_recorded=True)
