"""Runs a sweep: its queue, stages, retries and records.

An executor decides where cells run: on this host, under SLURM, or under Ray. The engine's process
never touches a GPU and never trains, so no cell can take it down.
"""

from __future__ import annotations

import bisect
import signal
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from scalewise.config import ConfigError
from scalewise.gpu import HostMismatch
from scalewise.host import Mirror, become_subreaper, plural
from scalewise.records import (
    Ending,
    RecordError,
    State,
    StrategyDecision,
    SweepFolder,
    cell_state,
    save_record,
)
from scalewise.supervisor import mendable
from scalewise.sweep.auto import (
    adaptive_requests,
    budget_of_rounds,
    decide,
    describe_rounds,
    next_rounds,
)
from scalewise.sweep.executor import Executor, QueuedCell, RunningCell
from scalewise.sweep.plan import Cell, Request, add_to_plan, plan
from scalewise.sweep.resume import is_rerun, lock_folder, planned_repeats, set_unreadable_aside
from scalewise.sweep.running_cells import measure_objective
from scalewise.sweep.status import Durations, StatusReader, waiting_cell
from scalewise.sweep.status_view import Display

_MOST_NAMED = 3
"""Files that a run of a script has written."""
_COMES_BACK: Final = ("config", "exception", "exit", "oom")
"""Faults of the program's own, by which each run of a configuration ends that has none done."""
_SHUTDOWN_S = 9.0
"""Running cells have this long to end when a sweep is interrupted."""


@dataclass
class SweepReport:
    folder: Path
    endings: dict[str, Ending] = field(default_factory=dict)
    """By cell id; of a cell that is done, the message says why it has no objective."""
    objectives: dict[str, float | None] = field(default_factory=dict)
    """By the id of each cell that is done."""
    cells: list[Cell] = field(default_factory=list)
    """The requested cells, and those that ``auto`` settings added."""
    chosen: dict[str, str] = field(default_factory=dict)
    """Maps the ``config_id`` of a request to that of the one a first stage chose in its place."""
    remarks: list[str] = field(default_factory=list)
    """Lines to show once the folder is locked."""

    def cells_of(self, config_id: str) -> list[Cell]:
        answered_by = self.chosen.get(config_id, config_id)
        return [cell for cell in self.cells if cell.planned.config_id == answered_by]

    def objective_of(self, config_id: str) -> float | None:
        """The mean over the cells that answer a request; None if any of them has none."""
        ids = [cell.planned.cell_id for cell in self.cells_of(config_id)]
        values = [value for one in ids if (value := self.objectives.get(one)) is not None]
        return sum(values) / len(values) if values and len(values) == len(ids) else None

    def why_without(self, config_id: str) -> str:
        ids = (cell.planned.cell_id for cell in self.cells_of(config_id))
        without = (self.endings[one].message for one in ids if self.objectives.get(one) is None)
        return next(without, "its first stage failed")

    def count(self, outcome: State) -> int:
        return sum(ending.outcome == outcome for ending in self.endings.values())


sweep_reports: list[SweepReport] = []
"""Every sweep this process has run: the command reports on them and derives its exit status."""


def add_sweep_report(report: SweepReport) -> None:
    """Add a sweep to :data:`sweep_reports`, or to its report there: sweepers ask in batches."""
    earlier = next((r for r in sweep_reports if r.folder == report.folder), None)
    if earlier is None:
        sweep_reports.append(report)
    else:
        earlier.endings.update(report.endings)
        earlier.objectives.update(report.objectives)
        earlier.cells += report.cells
        earlier.remarks += report.remarks


class Engine:
    def __init__(self, folder: Path, executor: Executor[Any], display: Display) -> None:
        self.folder = SweepFolder(folder)
        self.executor = executor
        self.display = display
        self.report = SweepReport(folder)
        """Endings so far; they stay when :meth:`run` is interrupted."""
        self.rerun_ids: frozenset[str] = frozenset()
        """Ids of done cells that are to run once more; their results are set aside."""
        self.undecided_requests: tuple[Request, ...] = ()
        """Requests with ``strategy=auto``: the cells to run decide them."""
        self._began_s = time.monotonic()
        self._waiting: list[QueuedCell] = []
        self._running: list[RunningCell] = []
        self._evidence: dict[str, StrategyDecision] = {}
        """Why a strategy was chosen, by the ``config_id`` of what is trained."""
        self._status = StatusReader(folder, most_measured=0)
        self._changed: set[str] = set()
        """Ids of cells whose status may be another than when it was last shown."""
        self._durations = Durations()
        self._retries = Counter[str]()
        """How often this process has tried each cell again, by its name."""
        self._side_effects_told = False

    def run(self, cells: Sequence[Cell]) -> SweepReport:
        """Run every cell that is not done.

        Raises KeyboardInterrupt, once every running cell has ended.
        """
        self._began_s = time.monotonic()
        with lock_folder(self.folder) as lock:
            for line in [*self.report.remarks, *describe_rounds(cells)]:
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
        """Run all stages, with a mirror beside them if there are trackers."""
        mirror = None
        try:
            self.report.cells += cells
            self._admit_all(cells, alone=len(cells) == 1)
            # Admitted first: only then does an executor know its host's slots.
            add_to_plan(self.folder, cells, self.executor.policy, self.executor.host.slots())
            if self._has_trackers(cells):
                mirror = Mirror(self.folder.path, self.display.note)
            self._loop()
            self._second_stage()
            self.undecided_requests = ()
            self._repeat_until_decided()
            if mirror is not None:
                mirror.finish()
        except BaseException:
            self._shut_down(mirror)
            raise

    def _has_trackers(self, cells: Sequence[Cell]) -> bool:
        pending = self._pending()
        pending += [c for c in cells if c.request.cell.repeats == "auto"]
        requests = [c.request for c in pending] + list(self.undecided_requests)
        return any(request.cell.tracking.trackers for request in requests)

    def _pending(self) -> list[Cell]:
        return [r.cell for r in self._running] + [queued.cell for queued in self._waiting]

    def _shut_down(self, mirror: Mirror | None) -> None:
        """End every running cell within :data:`_SHUTDOWN_S`, after an interrupt or an error."""
        deadline = time.monotonic() + _SHUTDOWN_S
        if mirror is not None:
            mirror.let_go()
        # A second Ctrl-C must not leave processes behind.
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.executor.cancel(self._running, deadline)
        finally:
            signal.signal(signal.SIGINT, previous)
        for planned in (cell.planned for cell in self._pending()):
            # As everyone reads it: what failed before it was queued again is to be mended.
            left = cell_state(self.folder.cell(planned.name), planned.cell_id)
            self.report.endings[planned.cell_id] = left.ending
        if mirror is not None:
            mirror.abandon(deadline)

    # The plan

    def _admit_all(self, cells: Sequence[Cell], alone: bool = False) -> None:
        """Queue cells, and set the results of reruns aside first."""
        for cell in cells:
            folder = self.folder.cell(cell.planned.name)
            if cell.planned.cell_id in self.rerun_ids:
                folder.set_aside()
            elif (note := set_unreadable_aside(folder, cell.planned)) is not None:
                self.display.note(note)
            if (evidence := self._evidence.get(cell.planned.config_id)) is not None:
                save_record(folder.path, evidence)
            self._admit(cell, alone)

    def _admit(self, cell: Cell, alone: bool) -> None:
        """Queue a cell unless it is done, runs, or cannot be run: an error if it is ``alone``."""
        folder = self.folder.cell(cell.planned.name)
        result = folder.find_result(cell.planned.cell_id)
        if result is not None:
            self._durations.add(cell.planned.config_id, result.elapsed_s)
            self._count(cell, Ending("done"))
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
            self._refuse(cell, Ending("skipped", "host", str(mismatch)))
        folder.save_config(cell.request.plain)

    def _queue(self, cell: Cell) -> None:
        """Put a cell at the end of its round in the queue."""
        folder = self.folder.cell(cell.planned.name)
        queued = QueuedCell(cell, folder, self.executor.demand(cell))
        bisect.insort(self._waiting, queued, key=lambda one: one.cell.planned.repeat)
        if folder.next_attempt_number() > 1:
            with suppress(OSError):  # a full disk: it is shown as failed
                folder.queued_path.touch()
            self._changed.add(cell.planned.cell_id)

    # Later stages

    def _second_stage(self) -> None:
        """Decide requests by the first stage's records, and run what they speak for."""
        answers = decide(self.folder, self.undecided_requests, self.display.note)
        self.report.chosen |= {asked: one.config_id for asked, (one, _) in answers.items()}
        self._evidence |= {one.config_id: evidence for one, evidence in answers.values()}
        known = {cell.planned.config_id for cell in self.report.cells}
        decided = [one for one, _ in answers.values() if one.config_id not in known]
        if not decided:
            return
        new = plan(decided, decided[0].cell.sweep.order_seed, planned_repeats(self.folder))
        again = (c for c in new if is_rerun(c.planned, c.request.cell.sweep.rerun))
        self.rerun_ids |= {c.planned.cell_id for c in again if self.folder.is_done(c.planned)}
        self._run_later(new)

    def _repeat_until_decided(self) -> None:
        requests = adaptive_requests(self.report.cells)
        budget_min = budget_of_rounds(requests.values())

        def fits(cells: Collection[Cell]) -> bool:
            if budget_min is None:
                return True
            slots, packed = self.executor.host.slots(), self.executor.policy == "packed"
            new = [waiting_cell(one.planned, one.planned.devices) for one in cells]
            # None where no cell of the sweep has ended.
            left_s = self._durations.seconds_left(new, slots, packed)
            return time.monotonic() - self._began_s + (left_s or 0.0) <= 60 * budget_min

        said = set[str]()
        while requests:
            following = next_rounds(self.folder, requests, fits)
            for brief in [one.brief for one in following.looked_at if one.brief not in said]:
                self.display.note(f"repeats  {brief}")
                said.add(brief)
            if not following.cells:
                pairs = len(following.left_open)
                if pairs and budget_min is not None:
                    self.display.note(
                        f"repeats  no more rounds within sweep.budget_min={budget_min:g}: "
                        f"{pairs} {plural(pairs, 'comparison')} undecided"
                    )
                return
            self._run_later(following.cells)

    def _run_later(self, cells: Sequence[Cell]) -> None:
        """Run cells of a later stage, planned before they run: a resumed sweep needs them."""
        self.report.cells += cells
        add_to_plan(self.folder, cells, self.executor.policy, self.executor.host.slots())
        self._admit_all(cells)
        self._loop()

    # While cells run

    def _loop(self) -> None:
        while self._waiting or self._running:
            # A cell that left the queue without a try makes room at once.
            if not self._start_cells():
                for running, ending in self.executor.poll(self._running):
                    self._finish(running, ending)
            self._show()

    def _start_cells(self) -> bool:
        """Start the cells that have room. Returns whether one left the queue without a try."""
        has_left = False
        for queued in self.executor.order(tuple(self._waiting), self._running):
            started: RunningCell | Ending | None
            try:
                started = self.executor.start(queued)
            except HostMismatch as mismatch:
                started = Ending("skipped", "host", str(mismatch))
            if started is None:
                continue
            self._waiting.remove(queued)
            if isinstance(started, Ending):
                self._refuse(queued.cell, started)
                has_left = True
                continue
            self._running.append(started)
            self._announce(started)
        return has_left

    def _announce(self, running: RunningCell) -> None:
        """Show that a cell has started, once for each of its starts."""
        if running.age_s is None:
            running.is_announced = False
        elif not running.is_announced:
            running.is_announced = True
            self.display.started(self._status.label(running.cell.planned), running.world_size)

    def _show(self) -> None:
        for running in self._running:
            self._announce(running)
            self._changed.add(running.cell.planned.cell_id)
        if self.display.is_due():
            # A shared disk that does not answer for a moment must not end what runs.
            with suppress(RecordError):
                status = self._status.read(changed=self._changed)
                if self.undecided_requests:  # more cells will come, which no record tells yet
                    status = replace(status, round=status.round or 1)
                self.display.tick(status)
                self._changed.clear()

    # How cells end

    def _finish(self, running: RunningCell, ending: Ending) -> None:
        """Count the cell of a try that has ended, or queue it again."""
        cell, seconds = running.cell, ending.elapsed_s
        self._running.remove(running)
        if ending.outcome == "failed" and not ending.is_recorded:
            began_at = time.time() - (seconds or 0.0)
            with suppress(OSError):  # a full disk: the command's last lines still show it
                ending = running.folder.save_attempt(replace(ending, started_at=began_at))
                running.folder.clear_running()
        if (why := self._why_again(cell, ending)) is not None:
            with suppress(HostMismatch):  # it cannot be run any longer
                self._queue(cell)
                self.display.note(f"again    {cell.planned.name}: {ending.message} ({why})")
                return
        if ending.outcome == "done" and seconds is not None:
            self._durations.add(cell.planned.config_id, seconds)
        self._count(cell, ending)
        if ending.outcome == "failed" and ending.cause in _COMES_BACK:
            name = cell.planned.name
            self._skip_alike(cell, Ending("skipped", ending.cause, f"it would fail as {name} did"))
        if cell.request.cell.script is not None and seconds is not None:
            self._tell_side_effects(cell, seconds)

    def _why_again(self, cell: Cell, ending: Ending) -> str | None:
        """Why it is to run again, which counts as a retry; None if it has failed for good."""
        if ending.cause == "preempted":
            return "no retry is counted"
        name, limit = cell.planned.name, cell.request.cell.sweep.retries
        reason = mendable(ending) if self._retries[name] < limit else None
        if reason is None:
            return None
        self._retries[name] += 1
        return f"{reason}; retry {self._retries[name]} of {limit}"

    def _skip_alike(self, failed: Cell, ending: Ending) -> None:
        """No later run of a configuration that has none done is tried, if rounds may be added or
        its input is wrong."""
        config_id = failed.planned.config_id
        same = [c.planned.cell_id for c in self.report.cells if c.planned.config_id == config_id]
        ended = [self.report.endings[cell_id] for cell_id in same if cell_id in self.report.endings]
        is_over = failed.request.cell.repeats == "auto" or ending.cause == "config"
        if not is_over or any(one.outcome == "done" for one in ended):
            return
        for queued in [q for q in self._waiting if q.cell.planned.config_id == config_id]:
            self._waiting.remove(queued)
            self._refuse(queued.cell, ending)

    def _tell_side_effects(self, cell: Cell, seconds: float) -> None:
        """Name what the first run of a script has written where all others write too."""
        if self._side_effects_told:
            return
        self._side_effects_told = True
        from scalewise.analysis import listed  # no other sweep needs these two
        from scalewise.script import changed_files

        found = changed_files(Path.cwd(), time.time() - seconds, cell.planned.name)
        if found:
            self.display.note(
                f"shared   a run wrote {listed(found, _MOST_NAMED)}, as the next one will; "
                "{run} in an argument becomes the name of each run"
            )

    def _count(self, cell: Cell, ending: Ending) -> None:
        planned, seconds, rate = cell.planned, ending.elapsed_s, None
        self.folder.cell(planned.name).queued_path.unlink(missing_ok=True)
        if ending.outcome == "done":
            folder, wanted = self.folder.cell(planned.name), cell.request.cell.sweep.objective
            ending, objective, rate = measure_objective(
                folder, planned.cell_id, wanted, was_reported=seconds is None
            )
            ending = replace(ending, elapsed_s=seconds)
            self.report.objectives[planned.cell_id] = objective
        self._changed.add(planned.cell_id)
        self.report.endings[planned.cell_id] = ending
        self.display.ended(self._status.label(planned), ending, rate)

    def _refuse(self, cell: Cell, ending: Ending) -> None:
        """Record a cell that failed or was skipped without a try."""
        self._count(cell, self.folder.cell(cell.planned.name).save_attempt(ending))
