"""What a command says at its end, and the exit status it comes to."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scalewise.streams import EXIT_NOT_SHOWN, discard, is_unread, say, silence_unread
from scalewise.sweep.job import Outcome
from scalewise.sweep.sweep_report import SweepReport, sweeps_run

if TYPE_CHECKING:
    from scalewise.analysis.summary import Analysis

EXIT_FAILED = 1
EXIT_SKIPPED = 3
EXIT_INVALID = 4
EXIT_INTERRUPTED = 130


def report() -> int:
    """Say what the sweeps of this process came to, and return the exit status."""
    if not sweeps_run:
        return 0  # --help, --cfg and completion run nothing
    try:
        shown = [_show(sweep) for sweep in sweeps_run]
    finally:
        # A disk that took no record may take no report either.
        for line in _unrecorded(sweeps_run):
            say(line)
    say_how_to_finish()
    left = [line for sweep in sweeps_run for line in _left_behind(sweep)]
    for line in left:
        say(line)
    for state, status in (("failed", EXIT_FAILED), ("interrupted", EXIT_INTERRUPTED)):
        if any(sweep.count(state) for sweep in sweeps_run):
            return status
    if EXIT_INVALID in shown:
        return EXIT_INVALID
    if left or any(s.count("skipped") or s.count("unstarted") for s in sweeps_run):
        return EXIT_SKIPPED
    return max(shown)


def _show(sweep: SweepReport) -> int:
    """Write the report and print its table; returns the exit status that this comes to."""
    from scalewise.analysis.load import load_sweep
    from scalewise.analysis.summary import analyse
    from scalewise.records import SweepFolder
    from scalewise.report import build

    shown, invalid = True, False
    if sweep.count("done"):
        analysis = analyse(load_sweep(sweep.folder))
        # First: it needs no room on the disk, which the report may not find.
        shown = _print_table(analysis)
        try:
            files = build(analysis)
        except OSError as error:
            folder = SweepFolder(sweep.folder).report_path
            say(f"error: {folder}: {error.strerror}: the cells are done; write their report with "
                f"scalewise report {sweep.folder} --out FOLDER")  # fmt: skip
            return EXIT_NOT_SHOWN
        invalid = files.invalid
        for problem in files.problems:
            say(f"warning: {problem}")
        say(f"report: {files.markdown}")
        _say_where_runs_are(sweep.folder)
    elif sweep.count("failed"):
        # Of nothing, but it says where to look.
        shown = _print_table(analyse(load_sweep(sweep.folder)))
    if invalid:
        return EXIT_INVALID
    return 0 if shown else EXIT_NOT_SHOWN


def _unrecorded(sweeps: Sequence[SweepReport]) -> list[str]:
    """Why cells failed whose folders could not take it, so that no table tells."""
    lines = (
        f"failed: {cell.planned.name}: {outcome.message} (of which nothing could be written)"
        for sweep in sweeps
        for cell in sweep.cells
        if (outcome := sweep.outcomes.get(cell.planned.cell_id)) and not outcome.is_recorded
    )
    return list(dict.fromkeys(lines))  # a sweeper may ask for a cell more than once


def _left_behind(sweep: SweepReport) -> tuple[str, ...]:
    """What a resumed folder still has to finish although this command did not ask for it."""
    from scalewise.records import SweepFolder
    from scalewise.sweep.left_behind import unfinished

    asked = {*sweep.outcomes, *(cell.planned.cell_id for cell in sweep.cells)}
    return unfinished(SweepFolder(sweep.folder), asked)


def _print_table(analysis: Analysis) -> bool:
    """To whoever still reads: the cells are done, and the files lie there.

    False where standard output cannot be written, which it has said.
    """
    from scalewise.report import print_console
    from scalewise.terminal import open_console

    try:
        print_console(analysis, open_console())
        sys.stdout.flush()
    except (OSError, SystemExit) as error:
        if not is_unread(error):
            discard(1)
            say(f"error: standard output: {error}; the table is not shown")
            return False
        silence_unread()
    return True


def _say_where_runs_are(folder: Path) -> None:
    """How to open what the trackers were given."""
    from scalewise.records import SweepFolder

    for _, cell in SweepFolder(folder).cells():
        if not cell.is_done():
            continue
        config = cell.load_config()
        if config.get("workload", "train") != "train":
            continue  # of an examination or a search nothing is handed over
        tracking = config.get("tracking", {})
        trackers, project = tracking.get("trackers", ()), tracking.get("project")
        if "trackio" in trackers:
            say(f"Trackio: scalewise trackio-view --project {project}")
        if "wandb" in trackers:
            say(f"WandB:   scalewise wandb-sync {folder} (uploads what was recorded offline)")
        return


def say_how_to_finish() -> None:
    """The command that finishes what of these sweeps another run may end better."""
    for sweep in sweeps_run:
        if any(_may_end_better(outcome) for outcome in sweep.outcomes.values()):
            # Given again, these would select other cells, or add still more.
            asked = [a.partition("=")[0].lstrip("+") for a in sys.argv]
            once = [key for key in ("sweep.rerun", "sweep.extend") if key in asked]
            without = f" without {' and '.join(once)}" if once else ""
            more = " and a larger sweep.max_gpu_hours" if sweep.count("unstarted") else ""
            say(f"finish it with the same command{without} and sweep.resume={sweep.folder}{more}")


def _may_end_better(outcome: Outcome) -> bool:
    """Whether the same command, given again, may finish the cell: wrong input stays wrong."""
    if outcome.state == "failed":
        return outcome.cause != "config"
    return outcome.state in ("interrupted", "unstarted")
