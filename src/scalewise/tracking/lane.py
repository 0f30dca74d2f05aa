"""One thread a tracker: whatever one of them does, the other goes on."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from scalewise.errors import in_one_line
from scalewise.records import TrackerState
from scalewise.tracking.base import (
    RunInfo,
    RunSummary,
    Tracker,
    TrackerError,
    TrackerRun,
    open_tracker,
)
from scalewise.tracking.rows import Row

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
