"""Follows one cell from its first record to the proof that the trackers hold all of them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from scalewise.config import in_one_line
from scalewise.records import (
    CellFolder,
    CurrentAttempt,
    PlannedCell,
    RecordError,
    ReplacedError,
    TrackerState,
    TrackingRecord,
    current_attempt,
)
from scalewise.tracking.rows import CellRows
from scalewise.tracking.tracker import (
    Row,
    RunInfo,
    RunSummary,
    Tracker,
    TrackerError,
    TrackerRun,
    log_every_n_steps,
    run_info,
    run_summary,
    trains_one_model,
    world_size,
)


def open_tracker(name: str) -> Tracker:
    """The tracker called ``name``. Raises :class:`TrackerError` if its package cannot be used."""
    # Importing a tracker takes a second or more, and only this one may be wanted.
    try:
        if name == "trackio":
            from scalewise.tracking.trackio import TrackioTracker

            return TrackioTracker()
        if name == "wandb":
            from scalewise.tracking.wandb import WandbTracker

            return WandbTracker()
    except Exception as error:
        # A broken third-party package may raise anything at all while it is imported.
        raise TrackerError(f"the package cannot be imported: {error}") from error
    raise TrackerError(f"found tracker {name!r}; allowed: trackio, wandb")


Report = Callable[[str, TrackerState], None]
"""Called with the tracker's name and the state of a run, once, when the run is over for it."""


@dataclass
class _Run:
    """A run in one tracker."""

    info: RunInfo
    report: Report
    handle: TrackerRun | None = None
    handed_over: int = 0
    problem: str | None = None

    def started(self) -> TrackerRun:
        assert self.handle is not None
        return self.handle

    def log(self, rows: Sequence[Row]) -> None:
        self.started().log(rows)
        self.handed_over += sum(row.alert is None for row in rows)

    def finish(self, summary: RunSummary) -> None:
        self.started().finish(summary)
        self.handed_over += bool(summary.values)

    def read_back(self) -> tuple[int | None, str | None]:
        """Rows as the tracker counts them, and what is wrong with that if anything is."""
        try:
            count = self.started().read_back()
        except Exception as error:
            return None, f"it could not be read back: {_problem(error)}"
        if count is not None and count != self.handed_over:
            return count, f"{self.handed_over} rows were handed over and {count} found there"
        return count, self.started().shortcoming


class Lane:
    """Hands the runs of one tracker their rows, in order, on a thread of its own.

    Whatever one tracker does, the others go on.
    """

    def __init__(
        self,
        name: str,
        complain: Callable[[str], None],
        opener: Callable[[str], Tracker] = open_tracker,
    ) -> None:
        self.name = name
        self._complain = complain
        self._opener = opener
        self._work: queue.Queue[Callable[[], None]] = queue.Queue()
        self._runs: dict[str, _Run] = {}
        self._tracker: Tracker | None = None
        self._said: set[str] = set()
        threading.Thread(target=self._serve, name=f"mirror-{name}", daemon=True).start()

    def start_run(self, info: RunInfo, report: Report) -> None:
        run = self._runs[info.run_id] = _Run(info, report)
        self._work.put(lambda: self._attempt(run, lambda: self._start(run)))

    def log(self, run_id: str, rows: Sequence[Row]) -> None:
        run = self._runs[run_id]
        self._work.put(lambda: self._attempt(run, lambda: run.log(rows)))

    def finish_run(self, run_id: str, summary: RunSummary, problem: str | None) -> None:
        """Close the run and read it back. ``problem`` is what the mirror knows to be wrong."""
        run = self._runs[run_id]
        self._work.put(lambda: self._finish(run, summary, problem))

    def wait(self, deadline: float) -> bool:
        """Whether all work was done before ``time.monotonic()`` reached ``deadline``."""
        while self._work.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.02)
        return not self._work.unfinished_tasks

    def abandon(self) -> None:
        """Report every run that is still open as incomplete: nobody waits for it any longer."""
        for run in list(self._runs.values()):
            problem = run.problem or "the mirror ended before this run was read back"
            self._close(run, "failed" if run.problem else "incomplete", None, problem)

    def _serve(self) -> None:
        while True:
            work = self._work.get()
            try:
                work()
            finally:
                self._work.task_done()

    def _attempt(self, run: _Run, action: Callable[[], None]) -> None:
        """Do it unless the run has failed already; a failure ends this run here, not training."""
        if run.problem is not None:
            return
        try:
            action()
        except Exception as error:
            # The seam to third-party trackers: whatever they raise is recorded and said.
            run.problem = _problem(error)
            self._say(run.problem)

    def _start(self, run: _Run) -> None:
        if self._tracker is None:
            self._tracker = self._opener(self.name)
        run.handle = self._tracker.start_run(run.info)

    def _finish(self, run: _Run, summary: RunSummary, problem: str | None) -> None:
        self._attempt(run, lambda: run.finish(summary))
        if run.problem is not None:
            self._close(run, "failed", None, run.problem)
            return
        read_back, doubt = run.read_back()
        problem = doubt or problem
        if problem is not None:
            self._say(problem)
        self._close(run, "incomplete" if problem else "synced", read_back, problem)

    def _close(
        self,
        run: _Run,
        status: Literal["synced", "incomplete", "failed"],
        read_back: int | None,
        problem: str | None,
    ) -> None:
        if self._runs.pop(run.info.run_id, None) is not None:
            planned = f"{run.info.tracking.project}/{run.info.name}"
            location = planned if run.handle is None else run.handle.location
            state = TrackerState(status, run.handed_over, read_back, location, problem)
            run.report(self.name, state)

    def _say(self, problem: str) -> None:
        # One broken tracker breaks every cell in the same words: once is enough on the screen.
        if problem not in self._said:
            self._said.add(problem)
            self._complain(f"{self.name}: {problem} (training and the records are not affected)")


def _problem(error: BaseException) -> str:
    return in_one_line(error, with_class=not isinstance(error, TrackerError))


class CellMirror:
    """Mirrors one cell: each try that leaves records becomes a run in every tracker."""

    def __init__(
        self,
        cell: CellFolder,
        lane_of: Callable[[str], Lane],
        complain: Callable[[str], None],
        planned: PlannedCell | None = None,
        sweep: Path | None = None,
    ) -> None:
        self._cell = cell
        self._lane_of = lane_of
        self._complain = complain
        self._planned = planned
        self._sweep = sweep
        self._open: _OpenTry | None = None
        self._done: tuple[int, int] | None = None
        """Number and stamp of the try that needs nothing more."""
        self._settled = False
        self._said: str | None = None

    def poll(self, *, closing: bool = False) -> None:
        """Hand over what is new."""
        if self._settled:
            return
        try:
            self._poll(closing)
        except (RecordError, OSError) as error:
            self._say(str(error))

    def close(self) -> None:
        """No more records will come: hand over what there is and end the run as it stands."""
        self.poll(closing=True)
        if self._open is not None:
            problem = self._read(self._open, final=False)
            unfinished = "the cell had not ended when the mirror did"
            self._finish(self._open, self._open.attempt, problem or unfinished)

    def _poll(self, closing: bool) -> None:
        attempt = current_attempt(self._cell)
        if attempt is None:
            return
        identity = (attempt.number, attempt.stamp)
        if self._open is not None and self._open.identity != identity:
            # A retry has begun: the records of the try before it are gone.
            failed = {a.number: a for a in self._cell.attempts()}.get(self._open.attempt.number)
            ended = replace(self._open.attempt, result=None, failure=failed)
            overtaken = "a retry began before all its records were mirrored"
            self._finish(self._open, ended, overtaken)
        if self._open is None and self._done != identity:
            self._done = identity
            self._open = self._start(attempt)
        if self._open is not None:
            # The sweep samples the devices once more when the result is there: what is read a poll
            # after that is all.
            done = attempt.result is not None
            final = attempt.has_ended and (closing or not done or self._open.is_done)
            problem = self._read(self._open, final=final)
            self._open.is_done = done
            if problem is not None or final:
                self._finish(self._open, attempt, problem)
                self._settled = done

    def _start(self, attempt: CurrentAttempt) -> _OpenTry | None:
        """Begin a run in every tracker that does not hold all of this try already."""
        config = self._cell.load_config()
        info = run_info(self._cell, config, attempt, self._planned, self._sweep)
        record = self._cell.load_tracking()
        states = record.trackers if record and record.attempt == attempt.number else {}
        # Mirrored again, it would be there twice.
        known = {name: state for name, state in states.items() if state.status == "synced"}
        lanes = [self._lane_of(n) for n in info.tracking.trackers if n not in known]
        if not lanes:
            self._settled = attempt.result is not None
            return None
        rows = CellRows(
            self._cell,
            log_every_n_steps(config),
            world_size(self._cell),
            info.tracking.system_interval_s,
            # Until rank 0 opens them anew, the series of the try before lie there still.
            since_ns=0 if attempt.result is not None else attempt.stamp,
            one_model=trains_one_model(config),
        )
        opened = _OpenTry(self._cell, attempt, info.run_id, rows, lanes, known, self._complain)
        for lane in lanes:
            lane.start_run(info, opened.report)
        return opened

    def _read(self, opened: _OpenTry, *, final: bool) -> str | None:
        """Hand over new rows. Returns what is wrong with the records, if anything is."""
        rows: list[Row] = []
        problem = None
        try:
            for row in opened.rows.read(final=final):
                rows.append(row)
        except (ReplacedError, RecordError) as error:
            problem = str(error)
            if isinstance(error, RecordError):
                self._say(problem)
        opened.log(rows)
        return problem

    def _finish(self, opened: _OpenTry, attempt: CurrentAttempt, problem: str | None) -> None:
        summary = run_summary(self._cell, attempt, opened.rows.windows)
        for lane in opened.lanes:
            lane.finish_run(opened.run_id, summary, problem)
        self._open = None

    def _say(self, problem: str) -> None:
        if problem != self._said:
            self._said = problem
            self._complain(f"tracking: {self._cell.name}: {problem}")


class _OpenTry:
    """A try that is in the trackers and not closed there; it keeps ``tracking.json`` true."""

    def __init__(
        self,
        cell: CellFolder,
        attempt: CurrentAttempt,
        run_id: str,
        rows: CellRows,
        lanes: Sequence[Lane],
        known: Mapping[str, TrackerState],
        complain: Callable[[str], None],
    ) -> None:
        self._cell = cell
        self._complain = complain
        self.attempt = attempt
        self.identity = (attempt.number, attempt.stamp)
        self.run_id = run_id
        self.rows = rows
        self.lanes = lanes
        self.is_done = False
        """Whether its result was there at the last poll."""
        self._lock = threading.Lock()
        pending = TrackerState("incomplete", 0, None, "", "the mirror has not finished")
        names = sorted(lane.name for lane in lanes)
        self._states = {**known, **dict.fromkeys(names, pending)}
        self._alerts: tuple[str, ...] = ()
        self._save()

    def log(self, rows: Sequence[Row]) -> None:
        """Hand rows to every lane."""
        alerts = [row.alert.title for row in rows if row.alert is not None]
        if alerts:
            with self._lock:
                self._alerts += tuple(alerts)
                self._save()
        for lane in self.lanes if rows else ():
            lane.log(self.run_id, rows)

    def report(self, tracker: str, state: TrackerState) -> None:
        """Record how the run stands in one tracker; called from the thread of its lane."""
        with self._lock:
            self._states[tracker] = state
            self._save()

    def _save(self) -> None:
        try:
            record = TrackingRecord(dict(self._states), self.attempt.number, self._alerts)
            self._cell.save_tracking(record)
        except OSError as error:
            self._complain(f"tracking: {self._cell.name}: tracking.json not written: {error}")
