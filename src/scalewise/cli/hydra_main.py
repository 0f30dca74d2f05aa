"""``python train.py``: Hydra around the sweep, its report, and the exit status it comes to."""

from __future__ import annotations

import logging
import os
import re
import shlex
import stat
import sys
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from scalewise.cli.exits import Exit, explain, is_the_hosts_fault, shown
from scalewise.cli.overrides import overrides_last, program, with_defaults, without_verbose
from scalewise.config import ONCE, ConfigError, conf_dir, key_of, pasteable
from scalewise.host import (
    escaped,
    foreign_launch,
    from_here,
    interrupt_on_polite_signals,
    is_unread,
    open_console,
    plural,
    say,
    seal,
    silence_unread,
)
from scalewise.records import REDACTED, SweepFolder, SweepPlan, load_or_none, redacted_words
from scalewise.supervisor import CellFailed
from scalewise.sweep import (
    SweepReport,
    discard_unused_folder,
    run_single,
    sweep_folder,
    sweep_reports,
    way_to_finish,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig


def train(defaults: bool = True, answers: bool = True) -> int:
    """Run the cell or the sweep on the command line, with ``.defconfig``; returns an Exit.

    Without ``answers`` only a sweep that is not done ends with its own.
    """
    launched = foreign_launch()
    if launched is not None and launched[1] != 0:
        launcher, rank, size = launched
        say(f"scalewise starts its own ranks: process {rank} of {launcher}'s {size} stands down")
        return Exit.DONE
    if str(Path.cwd()) not in sys.path:  # of a user's own model or dataset, after what is installed
        sys.path.append(str(Path.cwd()))
    wants_traceback = os.environ.get("HYDRA_FULL_ERROR", "") not in ("", "0")
    # Hydra would otherwise print an error itself, over many lines, and exit with 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    interrupt_on_polite_signals()
    verbose, new = False, list[Path]()
    try:
        typed, verbose = without_verbose(sys.argv[1:])
        sys.argv[1:] = overrides_last(with_defaults(typed) if defaults else typed)
        new = _folders_to_make(sys.argv)
        try:
            _run_hydra()
        finally:
            sys.stdout.flush()  # Hydra exits after --help
        return report(verbose=verbose, answers=answers)
    except KeyboardInterrupt:
        return _interrupted("interrupted")
    except CellFailed as error:
        # Hydra's sweeper gave up; what it got until then is reported all the same.
        say(f"error: {error}")
        return report(verbose=verbose) or Exit.FAILED
    except Exception as error:
        if is_unread(error):
            # A sweep that nobody watches is interrupted; what is only printed, like --help, ends.
            silence_unread()
            if not sweep_reports:
                return Exit.UNREAD
            return _interrupted("interrupted, because nobody reads this any longer")
        line = explain(error)
        if line is None or wants_traceback:
            raise
        say(f"error: {escaped(line)}")
        began = any(sweep.endings for sweep in sweep_reports)  # the input was not what is wrong
        return Exit.FAILED if began or is_the_hosts_fault(error) else Exit.WRONG_INPUT
    finally:
        discard_unused_folder(new)


def _folders_to_make(words: Sequence[str]) -> list[Path]:
    """A typed folder for records that is not there yet, and those above it, the innermost first."""
    folders = ("hydra.run.dir", "hydra.sweep.dir")
    named = [Path(word.partition("=")[2].strip("'\"")) for word in words if key_of(word) in folders]
    return [path for one in named for path in (one, *one.parents) if not path.exists()]


def resume(folder: Path, more: Sequence[str], *, trust: bool = False, verbose: bool = False) -> int:
    """Run the command recorded in ``folder`` for what it lacks, and the overrides ``more``.

    Raises ConfigError or RecordError for a folder that no such command has made, or that somebody
    else may have: its command can run any program, and does with ``trust``.
    """
    from scalewise.analysis import is_monitored, setting, sweep_folder

    sweep = sweep_folder(folder)
    plan = sweep.load_plan()
    command = plan.command
    program = PurePath(command[0]).name if command else "nothing"
    configs = [load_or_none(cell.load_config) for _, cell in sweep.cells()]
    if program not in ("train.py", "scalewise train") or any(map(is_monitored, configs)):
        raise ConfigError(
            f"{folder}: found the records of {program}; allowed: a sweep of train.py or scalewise "
            "train; run a script of your own again itself"
        )
    script = next(filter(None, (setting(one, "script.command") for one in configs)), None)
    place, typed = sweep.path.absolute().parent, map(key_of, command)
    here = Path("multirun", sweep.path.name)
    elsewhere = place.name == "multirun" and not (here.exists() and here.samefile(sweep.path))
    if script and elsewhere and "hydra.sweep.dir" not in typed:
        raise ConfigError(
            f"{folder}: found a script that was started in {place.parent}; allowed: to resume it "
            "from there, where lies what it reads and writes"
        )
    typed_again = {key_of(word) for word in more}
    if not trust and not _is_own(sweep, plan):
        raise ConfigError(
            f"{folder}: found a sweep that was made elsewhere, or that others can change; it would "
            f"run: {pasteable(program, command[1:], script)}; allowed: your own, or with --trust "
            "after a look at that"
        )
    words = [word for word in command[1:] if key_of(word) not in ONCE]
    words = [word for word in words if REDACTED not in word or key_of(word) not in typed_again]
    unknown = [word for word in words if REDACTED in word]
    if unknown:
        raise ConfigError(
            f"{', '.join(map(key_of, unknown))}: found no value, as no record holds secrets; "
            "give it again, itself or as ${oc.env:NAME}: "
            f"scalewise resume {folder} {shlex.join(unknown)}"
        )
    name = str(folder)
    if not re.fullmatch(r"[\w/.+-]*", name, re.ASCII):  # to Hydra, [a] is a list and a,b a choice
        name = "'{}'".format(name.replace("'", r"\'"))
    sys.argv = [command[0], *words, *more, f"sweep.resume={name}"]
    say(f"resumes: {pasteable(program, redacted_words(sys.argv[1:]), script)}")
    sys.argv += ["--verbose"] if verbose else []
    if place.name == "multirun" and _is_mine(place.parent):
        sys.path += [str(Path.cwd()), str(place.parent)]  # it was started beside a user's own model
    status = train(defaults=False)
    asked = {cell_id for one in sweep_reports for cell_id in one.endings}
    others = [one for one in plan.cells if one.cell_id not in asked and not sweep.is_done(one)]
    wrong = [try_.cause for c in others for try_ in [*sweep.cell(c.name).attempts()][-1:]]
    left = len(others) - wrong.count("config")  # which stays wrong
    # A search asks for others each time.
    is_whole = {"sweep.rerun", "hydra/sweeper"}.isdisjoint(map(key_of, (*words, *more)))
    if asked and left and is_whole and status != Exit.INTERRUPTED:
        whose = f"{left} {plural(left, 'cell')} of an earlier command without a result"
        say(f"{whose}: type that again with {shlex.quote(f'sweep.resume={name}')}")
    return status


def _is_own(sweep: SweepFolder, plan: SweepPlan) -> bool:
    """Whether this user typed the command, for this folder, and nobody else can write there."""
    if plan.seal is None or plan.seal != seal(str(sweep.path.resolve()), *plan.command):
        return False
    return _is_mine(sweep.path) and _is_mine(sweep.plan_path)


def _is_mine(path: Path) -> bool:
    """Whether it is this user's, and nobody else can write there."""
    found = path.stat()
    shared = found.st_mode & stat.S_IWGRP and found.st_gid != os.getgid()
    return found.st_uid == os.getuid() and not (found.st_mode & stat.S_IWOTH or shared)


def _interrupted(why: str) -> int:
    done = [from_here(one.folder) for one in sweep_reports if one.count("done")]
    reads = [f"scalewise report {shlex.quote(folder)}" for folder in dict.fromkeys(done)]
    none = ": no cell is done" * bool(sweep_reports)  # it may have done some before
    say(f"{why}; what is done: {' and '.join(reads)}" if reads else why + none)
    _say_how_to_finish()
    return Exit.INTERRUPTED


def _say_how_to_finish() -> None:
    for sweep in sweep_reports:
        if way := way_to_finish(sweep.folder, sweep.endings.values()):
            say(way)


def _run_hydra() -> None:
    import hydra
    from hydra.core.config_store import ConfigStore
    from hydra.core.plugins import Plugins
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("scalewise_folder", sweep_folder, replace=True)
    OmegaConf.register_new_resolver("scalewise_program", program, replace=True)
    held: list[Exception] = []

    def task(composed: DictConfig) -> float | None:
        from hydra.core.hydra_config import HydraConfig

        try:
            hydra_config = HydraConfig.get()
            folder = Path(hydra_config.runtime.output_dir)
            return run_single(composed, folder, list(hydra_config.overrides.task))
        except Exception as error:
            # Hydra would announce it in a line of its own; train() says it once.
            held.append(error)
            return None

    Plugins.instance()  # has Hydra's own sweeper stored, which keeps secrets in multirun.yaml
    ConfigStore.instance().store("basic", {"defaults": ["matrix"]}, group="hydra/sweeper")
    hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(task)()
    if held:
        raise held[0]


def report(*, verbose: bool = False, answers: bool = True) -> int:
    """Say what the sweeps of this process came to; returns the exit status."""
    if not sweep_reports:
        return Exit.DONE  # --help, --cfg and completion run nothing
    statuses = [
        _report_sweep(one, verbose, answers or one.count("done") < len(one.endings))
        for one in sweep_reports
    ]
    _say_how_to_finish()
    if any(sweep.count("failed") for sweep in sweep_reports):
        return Exit.FAILED
    if any(sweep.count("interrupted") for sweep in sweep_reports):
        return Exit.INTERRUPTED
    if Exit.INVALID in statuses:
        return Exit.INVALID
    if any(sweep.count("skipped") for sweep in sweep_reports):
        return Exit.SKIPPED
    return max(statuses)


def _report_sweep(sweep: SweepReport, verbose: bool, answers: bool) -> int:
    """Write the report, print the answer where asked; returns the exit status that it comes to."""
    if not sweep.count("done") and not sweep.count("failed"):
        return Exit.DONE
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # it tells which fonts it has found
    from scalewise.analysis import analyse, load_sweep
    from scalewise.report import build, print_console

    analysis = analyse(load_sweep(sweep.folder))
    # First: it needs no room on the disk, which the report may not find.
    status = Exit.DONE
    if answers and not shown(lambda: print_console(analysis, open_console(), verbose=verbose)):
        status = Exit.NOT_SHOWN
    if not sweep.count("done"):
        return status
    try:
        files = build(analysis)
    except OSError as error:
        folder = SweepFolder(sweep.folder).report_path
        say(
            f"error: {folder}: {error.strerror}: the cells are done; write their report with "
            f"scalewise report {sweep.folder} --out FOLDER"
        )
        return Exit.NOT_SHOWN
    for problem in files.problems:
        say(f"warning: {problem}")
    say(f"Report: {from_here(files.html)}")
    if _say_where_runs_are(sweep.folder) and analysis.pairs:
        from scalewise.tracking import hand_over_answer

        hand_over_answer(sweep.folder)
    return Exit.INVALID if analysis.invalid else status


def _say_where_runs_are(folder: Path) -> bool:
    """How to open what the trackers were given; False where there are none."""
    for _, cell in SweepFolder(folder).cells():
        if not cell.is_done():
            continue
        tracking = cell.load_config().get("tracking", {})
        trackers, project = tracking.get("trackers", ()), tracking.get("project")
        ways = {
            "trackio": f"Trackio: scalewise trackio-view --project {project}",
            "wandb": f"WandB: wandb sync {from_here(folder)}/wandb/offline-run-*",
        }
        for name in trackers:
            say(ways[name])
        return bool(trackers)
    return False
