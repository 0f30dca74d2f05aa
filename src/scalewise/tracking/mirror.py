"""The mirror process: hands the records of a sweep to the trackers while it runs.

``python -m scalewise.tracking.mirror SWEEP_FOLDER``. One process a sweep, on idle processor time
only, so that no tracker ever runs inside a rank or costs a step anything. Its standard input is a
pipe held by the sweep: the line ``finish`` asks it to complete everything that is on disk; the end
of the pipe without that line means the sweep has died, and then it stops within seconds. With
``--once`` it mirrors what is on disk and ends.

Each tracker has a thread that reads the records for itself: one that hangs holds up no other.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal, NoReturn

from scalewise.config import TRACKERS, in_one_line
from scalewise.host import exit_now, say
from scalewise.records import (
    CellFolder,
    CurrentAttempt,
    PlannedCell,
    RecordError,
    SweepFolder,
    TrackerState,
    TrackingRecord,
    current_attempt,
)
from scalewise.tracking.rows import CellRows
from scalewise.tracking.tracker import (
    RunInfo,
    SweepName,
    Tracker,
    TrackerError,
    TrackerRun,
    run_info,
    run_summary,
)

_POLL_S = 1.0
_FINISH_S = 60.0
"""How long the trackers may take for the rest."""
_ORPHANED_S = 5.0
_ONCE_S = 600.0
"""Of whoever asks for it: a server may take long, and nothing else waits."""
_UNHARMED = "training and the records are not affected"


def main(argv: Sequence[str] | None = None) -> int:
    """Mirror until told to finish. Exit status 1 if something is not in the trackers."""
    parser = argparse.ArgumentParser(prog="python -m scalewise.tracking.mirror")
    parser.add_argument("folder", type=Path, help="a sweep's folder")
    parser.add_argument("--once", action="store_true", help="mirror what is on disk and end")
    arguments = parser.parse_args(argv)
    # WandB prints of every log-in; this process's stderr is for what went wrong.
    os.environ.setdefault("WANDB_SILENT", "true")
    # Nor does it take the tracebacks of their own log files on a full disk.
    logging.raiseExceptions = False
    mirror = SweepMirror(arguments.folder)
    if arguments.once:
        return mirror.run(lambda: _ONCE_S)
    yield_processor()
    return mirror.run(_wait_for_the_sweep)


def yield_processor() -> None:
    """Take processor time only when nothing else wants it; children and threads inherit it.

    Libraries may have started threads of their own while they were imported.
    """
    try:
        _schedule(os.SCHED_IDLE)
    except (OSError, AttributeError):
        os.nice(19)


def reclaim_processor() -> None:
    """Compete for processor time again: the sweep is over, so nothing is timed any longer.

    An unprivileged process may not be allowed to; then it goes on with what is left over.
    """
    with contextlib.suppress(PermissionError):
        _schedule(os.SCHED_OTHER)


def _schedule(policy: int) -> None:
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setscheduler(int(task.name), policy, os.sched_param(0))


def _wait_for_the_sweep() -> float:
    """Seconds that the trackers have for the rest, once the sweep has ended or died."""
    told = b""
    while b"finish\n" not in told and (data := os.read(0, 4096)):
        told += data
    reclaim_processor()
    return _FINISH_S if b"finish\n" in told else _ORPHANED_S


def open_tracker(name: str) -> Tracker:
    """The tracker called ``name``. Raises :class:`TrackerError` if its package cannot be used."""
    # Importing a tracker takes a second or more, and only this one may be wanted.
    try:
        if name == "trackio":
            from scalewise.tracking.trackio import TrackioRun

            return TrackioRun
        from scalewise.tracking.wandb import WandbTracker

        return WandbTracker().start_run
    except Exception as error:
        # A broken third-party package may raise anything at all while it is imported.
        raise TrackerError(f"the package cannot be imported: {error}") from error


class SweepMirror:
    """Mirrors a sweep to every tracker, and says each problem once, whoever meets it."""

    def __init__(
        self,
        folder: Path,
        complain: Callable[[str], None] = say,
        opener: Callable[[str], Tracker] = open_tracker,
    ) -> None:
        self._complain = complain
        self._problems: set[str] = set()
        self._lock = threading.Lock()
        self.trackers = [TrackerMirror(name, folder, self._say, opener) for name in TRACKERS]

    def run(self, wait: Callable[[], float]) -> int:
        """Mirror until ``wait`` returns the seconds left for the rest. 0 if all is mirrored."""
        over = threading.Event()
        threads = [
            threading.Thread(target=one.follow, args=(over,), name=one.name, daemon=True)
            for one in self.trackers
        ]
        for thread in threads:
            thread.start()
        timeout_s = wait()
        over.set()
        deadline = time.monotonic() + timeout_s
        for thread, one in zip(threads, self.trackers, strict=True):
            thread.join(max(0.0, deadline - time.monotonic()))
            if not one.is_complete:
                self._say(f"{one.name}: did not take everything within {timeout_s:g} s")
        return 1 if self._problems else 0

    def _say(self, problem: str) -> None:
        with self._lock:
            if problem not in self._problems:
                self._problems.add(problem)
                self._complain(problem)


class TrackerMirror:
    """Follows the plan of a sweep and mirrors each of its cells to one tracker."""

    def __init__(
        self, name: str, folder: Path, say: Callable[[str], None], opener: Callable[[str], Tracker]
    ) -> None:
        self.name = name
        self.sweep = SweepFolder(folder)
        self.say = say
        self.called = SweepName("", "")
        """Known once the plan was read."""
        self.is_complete = False
        """Whether the last row was handed over, or a problem said."""
        self._opener = opener
        self._cells: dict[str, _CellMirror] = {}
        self._plan_mtime_ns: int | None = None

    @cached_property
    def tracker(self) -> Tracker:
        """Opened for the first cell that is to be in it."""
        return self._opener(self.name)

    def follow(self, over: threading.Event) -> None:
        """Hand over what is new until ``over`` is set, then the rest."""
        while not over.wait(_POLL_S):
            self.poll()
        self._follow_plan()
        for cell in self._cells.values():
            cell.close()
        self.is_complete = True

    def poll(self) -> None:
        self._follow_plan()
        for cell in self._cells.values():
            cell.poll()

    def _follow_plan(self) -> None:
        """A sweep may gain cells while it runs."""
        try:
            mtime_ns = self.sweep.plan_path.stat().st_mtime_ns
            if mtime_ns == self._plan_mtime_ns:
                return
            plan = self.sweep.load_plan()
        except (OSError, RecordError) as error:
            self.say(f"tracking: {error}")
            return
        self._plan_mtime_ns = mtime_ns
        self.called = SweepName.of(self.sweep, plan)
        for planned in plan.cells:
            if planned.name not in self._cells:
                self._cells[planned.name] = _CellMirror(self, planned)


class _CellMirror:
    """Mirrors one cell: each try that leaves records becomes a run in the tracker."""

    def __init__(self, mirror: TrackerMirror, planned: PlannedCell) -> None:
        self._mirror = mirror
        self._planned = planned
        self._cell = mirror.sweep.cell(planned.name)
        self._run: _Run | None = None
        self._seen: tuple[int, int] | None = None
        """Number and stamp of the last try that was looked at."""
        self._settled = False

    def poll(self) -> None:
        if self._settled:
            return
        try:
            self._poll()
        except (RecordError, OSError) as error:
            self._mirror.say(f"tracking: {self._cell.name}: {error}")

    def close(self) -> None:
        """No more records will come: hand over what there is and end the run as it stands."""
        self.poll()
        if self._run is not None:
            self._finish(self._run.attempt, "the cell had not ended when the mirror did")

    def _poll(self) -> None:
        attempt = current_attempt(self._cell)
        if attempt is None:
            return
        identity = (attempt.number, attempt.stamp)
        if self._run is not None and identity != self._seen:
            # A retry has begun: the records of the try before it are gone.
            failed = {a.number: a for a in self._cell.attempts()}.get(self._run.attempt.number)
            ended = replace(self._run.attempt, result=None, failure=failed)
            self._finish(ended, "a retry began before all its records were mirrored")
        if identity != self._seen:
            self._seen = identity
            self._run = self._start(attempt)
        if self._run is not None:
            problem = self._run.hand_over(final=attempt.has_ended)
            if problem is not None or attempt.has_ended:
                self._settled = attempt.result is not None
                self._finish(attempt, problem)

    def _start(self, attempt: CurrentAttempt) -> _Run | None:
        """Begin a run, unless the tracker is not wanted or holds all of this try already."""
        called, sweep = self._mirror.called, self._mirror.sweep.path
        info = run_info(self._cell, attempt, self._planned, sweep, called)
        record = self._cell.load_tracking()
        states = record.trackers if record and record.attempt == attempt.number else {}
        state = states.get(self._mirror.name)
        is_complete = state is not None and state.status == "synced"
        if is_complete or self._mirror.name not in info.tracking.trackers:
            self._settled = attempt.result is not None
            return None
        return _Run(self._mirror, self._cell, attempt, info)

    def _finish(self, attempt: CurrentAttempt, problem: str | None) -> None:
        run, self._run = self._run, None
        assert run is not None
        run.finish(attempt, problem)


_RECORD = threading.Lock()
"""The threads of two trackers write the ``tracking.json`` of a cell."""


class _Run:
    """A try in a tracker, from its first row until the tracker has counted all of them."""

    def __init__(
        self, mirror: TrackerMirror, cell: CellFolder, attempt: CurrentAttempt, info: RunInfo
    ) -> None:
        self.attempt = attempt
        self._mirror = mirror
        self._cell = cell
        self._rows = CellRows(cell, info.config, info.tracking.system_interval_s)
        self._location = f"{info.tracking.project}/{info.name}"
        self._handed_over = 0
        self._alerts: tuple[str, ...] = ()
        self._handle: TrackerRun | None = None
        self._problem: str | None = "the mirror has not finished"
        self._save("incomplete", None)
        self._problem = None
        with self._failing_alone():
            self._handle = mirror.tracker(info)

    @contextlib.contextmanager
    def _failing_alone(self) -> Iterator[None]:
        """The seam to third-party trackers: whatever they raise ends this run, not training."""
        try:
            yield
        except Exception as error:
            self._problem = in_one_line(error, with_class=not isinstance(error, TrackerError))
            # A tracker that is broken breaks every cell in the same words.
            self._mirror.say(f"{self._mirror.name}: {self._problem} ({_UNHARMED})")

    def hand_over(self, *, final: bool) -> str | None:
        """Log new rows. Returns what is wrong with the records, if anything is."""
        rows, problem = [], None
        try:
            for row in self._rows.read(final=final):
                rows.append(row)
        except RecordError as error:
            problem = str(error)
        if rows and self._handle is not None and self._problem is None:
            with self._failing_alone():
                self._handle.log(rows)
                self._handed_over += sum(row.alert is None for row in rows)
                self._alerts += tuple(row.alert.title for row in rows if row.alert is not None)
        return problem

    def finish(self, attempt: CurrentAttempt, problem: str | None) -> None:
        """Close the run, compare the counts and record how it stands.

        ``problem`` is what the mirror knows to be wrong.
        """
        status: Literal["synced", "incomplete", "failed"] = "failed"
        read_back = None
        if self._handle is not None and self._problem is None:
            with self._failing_alone():
                throughput = self._rows.windows.global_samples_per_s()
                summary = run_summary(self._cell, attempt, throughput)
                self._handle.finish(summary)
                self._handed_over += bool(summary.values)
                status = "incomplete"
                read_back = self._handle.read_back()
                if read_back not in (None, self._handed_over):
                    found = f"{self._handed_over} rows were handed over and {read_back} found there"
                    raise TrackerError(found)
                if problem is not None:
                    raise TrackerError(problem)
                status = "synced"
        self._save(status, read_back)

    def _save(
        self, status: Literal["synced", "incomplete", "failed"], read_back: int | None
    ) -> None:
        location = self._location if self._handle is None else self._handle.location
        state = TrackerState(status, self._handed_over, read_back, location, self._problem)
        with _RECORD:
            number, known = self.attempt.number, self._cell.load_tracking()
            if known is not None and known.attempt > number:
                return  # the other tracker is at a retry already
            if known is None or known.attempt < number:
                known = TrackingRecord({}, number, ())
            trackers = dict(sorted({**known.trackers, self._mirror.name: state}.items()))
            alerts = tuple(dict.fromkeys((*known.alerts, *self._alerts)))
            self._cell.save_tracking(TrackingRecord(trackers, number, alerts))


def run_and_exit(work: Callable[[], int]) -> NoReturn:
    """Be the process of ``work`` and end with its status, whatever trackers still wait for."""
    # WandB makes folders for temporary files when it is imported, and removes them in an exit
    # handler that does not run here.
    with tempfile.TemporaryDirectory(prefix="scalewise-mirror-", ignore_cleanup_errors=True) as own:
        tempfile.tempdir = os.environ["TMPDIR"] = own
        status = work()
    exit_now(status)  # exit handlers of trackers wait for servers; all of ours is on disk


if __name__ == "__main__":
    run_and_exit(main)
