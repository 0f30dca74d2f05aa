"""Follows one cell from its first record to the proof that the trackers hold all of them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

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
from scalewise.tracking.rows import CellRows, Row
from scalewise.tracking.tracker import (
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


# One thread a tracker: whatever one of them does, the other goes on.


_STILL_RUNNING: Final = "the mirror ended before this run was read back"


_Status: TypeAlias = Literal["synced", "incomplete", "failed"]


Report = Callable[[str, TrackerState], None]
"""Called with the run's id and its state, once, when the run is over for this tracker."""


@dataclass
class _Run:
    info: RunInfo
    report: Report
    handle: TrackerRun | None = None
    handed_over: int = 0
    problem: str | None = None

    @property
    def location(self) -> str:
        return f"{self.info.tracking.project}/{self.info.name}"

    def state(self, status: _Status, read_back: int | None, problem: str | None) -> TrackerState:
        location = self.location if self.handle is None else self.handle.location
        return TrackerState(status, self.handed_over, read_back, location, problem)


class Lane:
    """Hands the runs of one tracker their rows, in order, on a thread of its own."""

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
        self._thread = threading.Thread(target=self._serve, name=f"mirror-{name}", daemon=True)
        self._thread.start()

    def start_run(self, info: RunInfo, report: Report) -> None:
        self._runs[info.run_id] = run = _Run(info, report)
        self._work.put(lambda: self._attempt(run, lambda: self._start(run)))

    def log(self, run_id: str, rows: Sequence[Row]) -> None:
        run = self._runs[run_id]
        self._work.put(lambda: self._attempt(run, lambda: _log(run, rows)))

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
            problem = run.problem or _STILL_RUNNING
            self._close(run, run.state("failed" if run.problem else "incomplete", None, problem))

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
        def close() -> None:
            assert run.handle is not None
            run.handle.finish(summary)
            run.handed_over += bool(summary.values)

        self._attempt(run, close)
        if run.problem is not None:
            self._close(run, run.state("failed", None, run.problem))
            return
        read_back, doubt = _read_back(run)
        problem = doubt or problem
        if problem is not None:
            self._say(problem)
        self._close(run, run.state("incomplete" if problem else "synced", read_back, problem))

    def _close(self, run: _Run, state: TrackerState) -> None:
        if self._runs.pop(run.info.run_id, None) is not None:
            run.report(self.name, state)

    def _say(self, problem: str) -> None:
        # One broken tracker breaks every cell in the same words: once is enough on the screen.
        if problem not in self._said:
            self._said.add(problem)
            self._complain(f"{self.name}: {problem} (training and the records are not affected)")


def _log(run: _Run, rows: Sequence[Row]) -> None:
    assert run.handle is not None
    for row in rows:
        if row.alert is not None:
            run.handle.alert(row.id, row.time, row.step, row.alert)
            continue
        if row.kind == "metrics":
            run.handle.log(row.id, row.time, row.step, row.values)
        else:
            run.handle.log_system(row.id, row.time, row.values)
        run.handed_over += 1
    run.handle.flush()


def _read_back(run: _Run) -> tuple[int | None, str | None]:
    """Rows as the tracker counts them, and what is wrong with that if anything is."""
    assert run.handle is not None
    try:
        count = run.handle.read_back()
    except Exception as error:
        return None, f"it could not be read back: {_problem(error)}"
    if count is not None and count != run.handed_over:
        return count, f"{run.handed_over} rows were handed over and {count} found there"
    return count, run.handle.shortcoming


def _problem(error: BaseException) -> str:
    return in_one_line(error, with_class=not isinstance(error, TrackerError))


LaneOf = Callable[[str], Lane]


_UNFINISHED = "the cell had not ended when the mirror did"


class CellMirror:
    """Mirrors one cell: each try that leaves records becomes a run in every tracker."""

    def __init__(
        self,
        cell: CellFolder,
        lane_of: LaneOf,
        complain: Callable[[str], None],
        planned: PlannedCell | None = None,
        sweep: Path | None = None,
    ) -> None:
        self._cell = cell
        self._lane_of = lane_of
        self._complain = complain
        self._planned = planned
        self._sweep = sweep
        self._open: _OpenRun | None = None
        self._done: tuple[int, int] | None = None
        """Number and stamp of the try that needs nothing more."""
        self._settled = False
        self._said: str | None = None

    def poll(self, *, closing: bool = False) -> bool:
        """Hand over what is new. Returns whether the run is open in the trackers."""
        if self._settled:
            return False
        try:
            self._poll(closing)
        except (RecordError, OSError) as error:
            self._say(str(error))
        return self._open is not None

    def close(self) -> None:
        """No more records will come: hand over what there is and end the run as it stands."""
        self.poll(closing=True)
        if self._open is not None:
            self._open.finish(self._open.attempt, self._read(final=False) or _UNFINISHED)
            self._open = None

    def _poll(self, closing: bool) -> None:
        attempt = current_attempt(self._cell)
        if attempt is None:
            return
        identity = (attempt.number, attempt.stamp)
        if self._open is not None and self._open.identity != identity:
            # A retry has begun: the records of the try before it are gone.
            self._finish_overtaken()
        if self._open is None and self._done != identity:
            self._start(attempt)
        if self._open is not None:
            # The sweep samples the devices once more when the result is there: what is read a poll
            # after that is all.
            done = attempt.result is not None
            final = attempt.has_ended and (closing or not done or self._open.is_done)
            problem = self._read(final=final)
            self._open.is_done = done
            if problem is not None or final:
                self._open.finish(attempt, problem)
                self._open = None
                self._settled = done

    def _start(self, attempt: CurrentAttempt) -> None:
        self._done = (attempt.number, attempt.stamp)
        config = self._cell.load_config()
        info = run_info(self._cell, config, attempt, self._planned, self._sweep)
        known = self._synced(attempt)
        lanes = [self._lane_of(n) for n in info.tracking.trackers if n not in known]
        if not lanes:
            self._settled = attempt.result is not None
            return
        rows = CellRows(
            self._cell,
            log_every_n_steps(config),
            world_size(self._cell),
            info.tracking.system_interval_s,
            # Until rank 0 opens them anew, the series of the try before lie there still.
            since_ns=0 if attempt.result is not None else attempt.stamp,
            one_model=trains_one_model(config),
        )
        awaited = {lane.name for lane in lanes}
        book = _Book(self._cell, attempt.number, known, awaited, self._complain)
        for lane in lanes:
            lane.start_run(info, book.report)
        self._open = _OpenRun(self._cell, attempt, info.run_id, rows, lanes, book)

    def _synced(self, attempt: CurrentAttempt) -> dict[str, TrackerState]:
        """Trackers that hold all of this try already: mirroring it again would double it."""
        record = self._cell.load_tracking()
        if record is None or record.attempt != attempt.number:
            return {}
        return {n: s for n, s in record.trackers.items() if s.status == "synced"}

    def _read(self, *, final: bool) -> str | None:
        """Hand over new rows. Returns what is wrong with the records, if anything is."""
        assert self._open is not None
        rows = []
        problem = None
        try:
            for row in self._open.rows.read(final=final):
                rows.append(row)
        except ReplacedError as error:
            problem = str(error)
        except RecordError as error:
            problem = str(error)
            self._say(problem)
        alerts = [row.alert.title for row in rows if row.alert is not None]
        if alerts:
            self._open.book.note_alerts(alerts)
        if rows:
            for lane in self._open.lanes:
                lane.log(self._open.run_id, rows)
        return problem

    def _finish_overtaken(self) -> None:
        assert self._open is not None
        number = self._open.attempt.number
        failures = {a.number: a for a in self._cell.attempts()}
        ended = CurrentAttempt(number, self._open.attempt.stamp, None, failures.get(number))
        self._open.finish(ended, "a retry began before all its records were mirrored")
        self._open = None

    def _say(self, problem: str) -> None:
        if problem != self._said:
            self._said = problem
            self._complain(f"tracking: {self._cell.name}: {problem}")


class _OpenRun:
    """A try that is in the trackers and not closed there."""

    def __init__(
        self,
        cell: CellFolder,
        attempt: CurrentAttempt,
        run_id: str,
        rows: CellRows,
        lanes: list[Lane],
        book: _Book,
    ) -> None:
        self._cell = cell
        self.attempt = attempt
        self.identity = (attempt.number, attempt.stamp)
        self.run_id = run_id
        self.rows = rows
        self.lanes = lanes
        self.book = book
        self.is_done = False
        """Whether its result was there at the last poll."""

    def finish(self, attempt: CurrentAttempt, problem: str | None) -> None:
        summary = run_summary(self._cell, attempt, self.rows.windows)
        for lane in self.lanes:
            lane.finish_run(self.run_id, summary, problem)


class _Book:
    """Collects what the lanes report of a try and keeps ``tracking.json`` true meanwhile."""

    def __init__(
        self,
        cell: CellFolder,
        attempt: int,
        known: Mapping[str, TrackerState],
        awaited: set[str],
        complain: Callable[[str], None],
    ) -> None:
        self._cell = cell
        self._complain = complain
        self._attempt = attempt
        self._lock = threading.Lock()
        pending = TrackerState("incomplete", 0, None, "", "the mirror has not finished")
        self._states = {**known, **dict.fromkeys(sorted(awaited), pending)}
        self._alerts: list[str] = []
        self._save()

    def note_alerts(self, titles: list[str]) -> None:
        with self._lock:
            self._alerts += titles
            self._save()

    def report(self, tracker: str, state: TrackerState) -> None:
        with self._lock:
            self._states[tracker] = state
            self._save()

    def _save(self) -> None:
        try:
            record = TrackingRecord(dict(self._states), self._attempt, tuple(self._alerts))
            self._cell.save_tracking(record)
        except OSError as error:
            self._complain(f"tracking: {self._cell.name}: tracking.json not written: {error}")
