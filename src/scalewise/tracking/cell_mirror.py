"""Follows one cell from its first record to the proof that the trackers hold all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from scalewise.records import (
    CellFolder,
    PlannedCell,
    RecordError,
    TrackerState,
    TrackingRecord,
)
from scalewise.tracking.attempt import CurrentAttempt, current_attempt
from scalewise.tracking.describe import (
    log_every_n_steps,
    run_info,
    run_summary,
    trains_one_model,
    world_size,
)
from scalewise.tracking.lane import Lane
from scalewise.tracking.rows import CellRows
from scalewise.tracking.tail import ReplacedError

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
