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
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scalewise.tracking.sweep_mirror import SweepMirror

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
    # These take their processor time when imported, so only now.
    from scalewise.tracking.sweep_mirror import SweepMirror

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
    """Take processor time only when nothing else wants it; children and threads inherit it."""
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except (OSError, AttributeError):
        os.nice(19)


def reclaim_processor() -> None:
    """Compete for processor time again: the sweep is over, so nothing is timed any longer.

    An unprivileged process may not be allowed to; then it goes on with what is left over.
    """
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.sched_setscheduler(int(task.name), os.SCHED_OTHER, os.sched_param(0))


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
