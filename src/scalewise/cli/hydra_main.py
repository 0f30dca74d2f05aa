"""What a command says at its end, and the exit status it comes to."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scalewise.cli.overrides import explain, is_the_hosts_fault, overrides_last, with_defaults
from scalewise.config import EXIT_CONFIG_ERROR, conf_dir
from scalewise.host import (
    EXIT_NOT_SHOWN,
    EXIT_UNREAD,
    discard,
    foreign_launch,
    interrupt_on_polite_signals,
    is_unread,
    open_closed_streams,
    say,
    silence_unread,
)
from scalewise.supervisor import CellFailed, Outcome
from scalewise.sweep import SweepReport, discard_unused_folder, sweep_folder, sweeps_run

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from scalewise.analysis import Analysis


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
    from scalewise.analysis import analyse, load_sweep
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
    from scalewise.sweep import unfinished

    asked = {*sweep.outcomes, *(cell.planned.cell_id for cell in sweep.cells)}
    return unfinished(SweepFolder(sweep.folder), asked)


def _print_table(analysis: Analysis) -> bool:
    """To whoever still reads: the cells are done, and the files lie there.

    False where standard output cannot be written, which it has said.
    """
    from scalewise.host import open_console
    from scalewise.report import print_console

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


# ``python train.py``: Hydra around the sweep, and one clear line for whatever is typed wrong.


def train() -> int:
    """Run the cell or the sweep on the command line.

    Exit status: 0 every cell is done, 1 a cell failed or no record could be written, 2 the input is
    wrong, 3 nothing failed but a cell was skipped because this host cannot run it or left because
    sweep.max_gpu_hours is used up or a resumed sweep was given other choices, 4 a verdict is
    invalid, 74 all is done but standard output or the report could not be written, 130 interrupted.
    """
    open_closed_streams()
    launched = foreign_launch()
    if launched is not None and launched[1] != 0:
        launcher, rank, size = launched
        say(f"scalewise starts its own ranks: process {rank} of {launcher}'s {size} stands down")
        return 0
    if str(Path.cwd()) not in sys.path:
        # A user's own model or dataset lies where he stands; ours come first.
        sys.path.append(str(Path.cwd()))
    wants_traceback = os.environ.get("HYDRA_FULL_ERROR", "") not in ("", "0")
    # Hydra would otherwise print an error itself, over many lines, and exit with 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    # Whoever stops a job politely wants what Ctrl-C gives: nothing left behind, and how to go on.
    interrupt_on_polite_signals()
    try:
        sys.argv[1:] = overrides_last(with_defaults(sys.argv[1:]))
        return _run_and_report()
    except KeyboardInterrupt:
        return _interrupted("interrupted")
    except SystemExit as error:
        if not is_unread(error):
            raise
        return _unread()
    except CellFailed as error:
        # Hydra's sweeper gave up; what it got until then is reported all the same.
        say(f"error: {error}")
        return report() or EXIT_FAILED
    except Exception as error:
        if is_unread(error):
            return _unread()
        line = explain(error)
        if line is None or wants_traceback:
            raise
        say(f"error: {line}")
        return EXIT_FAILED if is_the_hosts_fault(error) else EXIT_CONFIG_ERROR
    finally:
        discard_unused_folder()


def _unread() -> int:
    """Nobody reads on: a sweep is interrupted, and what is only printed, such as --help, ends."""
    silence_unread()
    if not sweeps_run:
        return EXIT_UNREAD
    return _interrupted("interrupted, because nobody reads this any longer")


def _interrupted(what: str) -> int:
    say(f"{what}: what was finished is kept")
    say_how_to_finish()
    return EXIT_INTERRUPTED


def _run_and_report() -> int:
    _run_hydra()
    sys.stdout.flush()
    return report()


def _run_hydra() -> None:
    import hydra
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("scalewise_folder", sweep_folder, replace=True)
    held: list[Exception] = []

    def task(composed: DictConfig) -> float | None:
        from hydra.core.hydra_config import HydraConfig

        from scalewise.sweep import run_single

        try:
            hydra_config = HydraConfig.get()
            folder = Path(hydra_config.runtime.output_dir)
            return run_single(composed, folder, list(hydra_config.overrides.task))
        except Exception as error:
            # Hydra would announce it in a line of its own; train() says it once.
            held.append(error)
            return None

    hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(task)()
    if held:
        raise held[0]
