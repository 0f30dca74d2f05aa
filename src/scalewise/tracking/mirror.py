"""The mirror process: hands the records of a sweep to the trackers while it runs.

``python -m scalewise.tracking.mirror SWEEP_FOLDER`` or ``... --cell CELL_FOLDER``. One process a
sweep, on idle processor time only, so that no tracker ever runs inside a rank or costs a step
anything. Its standard input is a pipe held by the sweep: the line ``finish`` asks it to complete
everything that is on disk; the end of the pipe without that line means the sweep has died, and
then it stops within seconds. With ``--once`` it mirrors what is on disk and ends.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from scalewise.records import CellFolder, RecordError, SweepFolder
from scalewise.tracking.cell_mirror import CellMirror, Lane, open_tracker
from scalewise.tracking.tracker import Tracker

_POLL_S = 1.0
_ORPHANED_S = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """Mirror until told to finish. Exit status 1 if something is not in the trackers."""
    arguments = _parse(argv)
    if not arguments.once:
        yield_processor()
    # WandB prints of every log-in; this process's stderr is for what went wrong.
    os.environ.setdefault("WANDB_SILENT", "true")
    # Nor does it take the tracebacks of their own log files on a full disk.
    logging.raiseExceptions = False
    mirror = SweepMirror(arguments.folder, single_cell=arguments.cell)
    if arguments.once:
        return mirror.finish(arguments.finish_timeout_s)
    line = _Lifeline()
    while line.holds:
        mirror.poll()
        line.wait(_POLL_S)
    reclaim_processor()
    return _end(mirror, arguments.finish_timeout_s if line.said_finish else _ORPHANED_S)


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
    """Set the policy of every thread of this process."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setscheduler(int(task.name), policy, os.sched_param(0))


class _Lifeline:
    """Standard input, read on a thread of its own."""

    def __init__(self) -> None:
        self.said_finish = False
        self._over = threading.Event()
        threading.Thread(target=self._read, name="lifeline", daemon=True).start()

    @property
    def holds(self) -> bool:
        return not self._over.is_set()

    def wait(self, seconds: float) -> None:
        self._over.wait(seconds)

    def _read(self) -> None:
        # Unbuffered, because Python's own buffer must not be locked when the process exits.
        pending = b""
        while data := os.read(0, 4096):
            pending += data
            if b"finish\n" in pending:
                self.said_finish = True
                break
        self._over.set()


def _end(mirror: SweepMirror, timeout_s: float) -> int:
    """Finish in time, whatever a tracker does: a thread of one may hang for ever."""

    def give_up() -> None:
        time.sleep(timeout_s + 3)
        os._exit(1)

    threading.Thread(target=give_up, name="give-up", daemon=True).start()
    return mirror.finish(timeout_s)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scalewise.tracking.mirror",
        description="Mirror the records of a sweep to Trackio and WandB.",
    )
    parser.add_argument("folder", type=Path, help="a sweep's folder, or with --cell a cell's")
    parser.add_argument("--cell", action="store_true", help="the folder is a single cell's")
    parser.add_argument("--once", action="store_true", help="mirror what is on disk and end")
    parser.add_argument(
        "--finish-timeout-s",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds the trackers have to take the rest (default: 60)",
    )
    return parser.parse_args(argv)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - the sweep shows this stream


class SweepMirror:
    """Follows the plan of a sweep and mirrors each of its cells."""

    def __init__(
        self,
        folder: Path,
        *,
        single_cell: bool = False,
        complain: Callable[[str], None] = _to_stderr,
        opener: Callable[[str], Tracker] = open_tracker,
    ) -> None:
        self._folder = folder
        self._complain = complain
        self._opener = opener
        self._lanes: dict[str, Lane] = {}
        self._cells: dict[str, CellMirror] = {}
        self._plan_mtime_ns: int | None = None
        self._single_cell = single_cell
        self._said_plan: str | None = None
        self._problems = 0
        if single_cell:
            self._cells[folder.name] = CellMirror(CellFolder(folder), self._lane, self._say)

    def poll(self) -> None:
        """Hand over what is new in every cell."""
        self._follow_plan()
        for cell in self._cells.values():
            cell.poll()

    def finish(self, timeout_s: float) -> int:
        """Hand over the rest and wait for the trackers. 0 if they hold everything, else 1."""
        deadline = time.monotonic() + timeout_s
        self.poll()
        for cell in self._cells.values():
            cell.close()
        for lane in self._lanes.values():
            if not lane.wait(deadline):
                self._say(f"{lane.name}: did not take everything within {timeout_s:g} s")
                lane.abandon()
        return 1 if self._problems else 0

    def _follow_plan(self) -> None:
        """A sweep may gain cells while it runs."""
        if self._single_cell:
            return
        sweep = SweepFolder(self._folder)
        try:
            mtime_ns = sweep.plan_path.stat().st_mtime_ns
            if mtime_ns == self._plan_mtime_ns:
                return
            plan = sweep.load_plan()
        except (OSError, RecordError) as error:
            if str(error) != self._said_plan:
                self._said_plan = str(error)
                self._say(f"tracking: {error}")
            return
        self._plan_mtime_ns = mtime_ns
        for planned in plan.cells:
            if planned.name not in self._cells:
                cell = sweep.cell(planned.name)
                self._cells[planned.name] = CellMirror(
                    cell, self._lane, self._say, planned, self._folder
                )

    def _lane(self, tracker: str) -> Lane:
        if tracker not in self._lanes:
            self._lanes[tracker] = Lane(tracker, self._say, self._opener)
        return self._lanes[tracker]

    def _say(self, problem: str) -> None:
        self._problems += 1
        self._complain(problem)


if __name__ == "__main__":
    # WandB makes folders for temporary files when it is imported, and removes them in an exit
    # handler that does not run here.
    with tempfile.TemporaryDirectory(prefix="scalewise-mirror-", ignore_cleanup_errors=True) as own:
        tempfile.tempdir = os.environ["TMPDIR"] = own
        status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Trackers register exit handlers that wait for servers; everything of ours is on disk.
    os._exit(status)
