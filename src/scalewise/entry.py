"""``python train.py``: Hydra around the sweep, and one clear line for whatever is typed wrong."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from scalewise.config import EXIT_CONFIG_ERROR, ConfigError
from scalewise.defaults import FILE, saved, under
from scalewise.explain import explain, is_the_hosts_fault, options_of
from scalewise.paths import conf_dir, discard_unused_folder, sweep_folder
from scalewise.streams import (
    interrupt_on_polite_signals,
    is_unread,
    open_closed_streams,
    silence_unread,
)
from scalewise.sweep.job import CellFailed, Outcome
from scalewise.train.rank import foreign_launch

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from scalewise.sweep.engine import SweepReport

EXIT_FAILED = 1
EXIT_SKIPPED = 3
EXIT_INTERRUPTED = 130
EXIT_UNREAD = 128 + signal.SIGPIPE


def train() -> int:
    """Run the cell or the sweep on the command line.

    Exit status: 0 every cell is done, 1 a cell failed, 2 the input is wrong, 3 nothing failed
    but a cell was skipped because this host cannot run it or left because sweep.max_gpu_hours is
    used up or a resumed sweep was given other choices, 130 interrupted.
    """
    open_closed_streams()
    launched = foreign_launch()
    if launched is not None and launched[1] != 0:
        launcher, rank, size = launched
        _say(f"scalewise starts its own ranks: process {rank} of {launcher}'s {size} stands down")
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
        sys.argv[1:] = overrides_last(_with_defaults(sys.argv[1:]))
        _run_hydra()
        return _report()
    except KeyboardInterrupt:
        return _interrupted("interrupted")
    except SystemExit as error:
        if not is_unread(error):
            raise
        return _unread()
    except CellFailed as error:
        # Hydra's sweeper gave up; what it got until then is reported all the same.
        _say(f"error: {error}")
        return _report() or EXIT_FAILED
    except Exception as error:
        if is_unread(error):
            return _unread()
        line = explain(error)
        if line is None or wants_traceback:
            raise
        _say(f"error: {line}")
        return EXIT_FAILED if is_the_hosts_fault(error) else EXIT_CONFIG_ERROR
    finally:
        discard_unused_folder()


def _unread() -> int:
    """Nobody reads on: a sweep is interrupted, and what is only printed, such as --help, ends."""
    silence_unread()
    if not _sweeps():
        return EXIT_UNREAD
    return _interrupted("interrupted, because nobody reads this any longer")


def _interrupted(what: str) -> int:
    _say(f"{what}: what was finished is kept")
    _say_how_to_finish()
    return EXIT_INTERRUPTED


def _with_defaults(arguments: list[str]) -> list[str]:
    """The saved default configuration before what was typed, and a line that says so."""
    defaults = under(arguments, saved())
    if defaults:
        _say(f"defaults of {FILE} (make defconfig-none removes them): {' '.join(defaults)}")
    return [*defaults, *arguments]


def overrides_last(arguments: list[str]) -> list[str]:
    """``a=1 -m b=2`` as ``-m a=1 b=2``: Hydra's parser takes the overrides in one piece only.

    Raises ConfigError for an option that Hydra does not have, and for a launcher or sweeper that
    is no choice of one.
    """
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"{message}; python {Path(sys.argv[0]).name} --hydra-help lists them")

    parser.error = refuse  # type: ignore[method-assign]
    overrides = parser.parse_intermixed_args(arguments).overrides
    for override in overrides:
        _check_override(override)
    options = list(arguments)
    for override in reversed(overrides):
        # The last of its kind: an equal word before it is the value of an option.
        del options[len(options) - 1 - options[::-1].index(override)]
    return [*options, *overrides]


def _check_override(override: str) -> None:
    """Refuse what Hydra would trip over, or take for something that nobody means.

    It starts its launcher and sweeper from nodes of their own, and anything else there is no
    launcher.

    Raises ConfigError.
    """
    key, _, value = override.partition("=")
    key = key.strip().lstrip("+~")
    if key in ("hydra.launcher", "hydra.sweeper"):
        raise ConfigError(
            f"{key}: found {value or override!r} in place of its settings; allowed: "
            f"{key.replace('.', '/')}=NAME to choose one, {key}.KEY=VALUE to set it"
        )
    if key in ("hydra/launcher", "hydra/sweeper") and (value == "null" or override[0] == "~"):
        raise ConfigError(f"{key}: found {override!r}; allowed: NAME of one, or leave it out")
    if value.startswith("[") and (options := options_of(key)):
        # Hydra would lay one over the other.
        raise ConfigError(f"{key}: found the list {value}; allowed: one of {', '.join(options)}")
    if key in ("hydra.run.dir", "hydra.sweep.dir") and value.strip("'\"") == "":
        raise ConfigError(f"{key}: found {override!r}; allowed: a folder, {key}=FOLDER")


def _say(text: str) -> None:
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except OSError as error:
        if not is_unread(error):
            raise
        silence_unread()


def _run_hydra() -> None:
    import hydra
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("scalewise_folder", sweep_folder, replace=True)
    held: list[Exception] = []

    def task(composed: DictConfig) -> float | None:
        from hydra.core.hydra_config import HydraConfig

        from scalewise.sweep.launcher import run_single

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


def _report() -> int:
    """Say what the sweeps of this process came to, and return the exit status."""
    sweeps = _sweeps()
    if not sweeps:
        return 0
    from scalewise.report import build

    for sweep in sweeps:
        if sweep.count("done"):
            files = build(sweep.folder)
            _print_table(sweep.folder)
            _say(f"report: {files.markdown}")
            _say_where_runs_are(sweep.folder)
        elif sweep.count("failed"):
            _print_table(sweep.folder)  # of nothing, but it says where to look
    _say_how_to_finish()
    left = [line for sweep in sweeps for line in _left_behind(sweep)]
    for line in left:
        _say(line)
    for state, status in (
        ("failed", EXIT_FAILED),
        ("interrupted", EXIT_INTERRUPTED),
        ("skipped", EXIT_SKIPPED),
        ("unstarted", EXIT_SKIPPED),
    ):
        if any(sweep.count(state) for sweep in sweeps):
            return status
    return EXIT_SKIPPED if left else 0


def _left_behind(sweep: SweepReport) -> tuple[str, ...]:
    """What a resumed folder still has to finish although this command did not ask for it."""
    from scalewise.records import SweepFolder
    from scalewise.sweep.left_behind import unfinished

    asked = {*sweep.outcomes, *(cell.planned.cell_id for cell in sweep.cells)}
    return unfinished(SweepFolder(sweep.folder), asked)


def _print_table(folder: Path) -> None:
    """To whoever still reads: the cells are done, and the files lie there."""
    from scalewise.report import print_console
    from scalewise.terminal import open_console

    try:
        print_console(folder, open_console())
        sys.stdout.flush()
    except (OSError, SystemExit) as error:
        if not is_unread(error):
            raise
        silence_unread()


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
            _say(f"Trackio: scalewise trackio-view --project {project}")
        if "wandb" in trackers:
            _say(f"WandB:   scalewise wandb-sync {folder} (uploads what was recorded offline)")
        return


def _say_how_to_finish() -> None:
    for sweep in _sweeps():
        if any(_may_end_better(outcome) for outcome in sweep.outcomes.values()):
            # Given again, these would select other cells, or add still more.
            asked = [a.partition("=")[0].lstrip("+") for a in sys.argv]
            once = [key for key in ("sweep.rerun", "sweep.extend") if key in asked]
            without = f" without {' and '.join(once)}" if once else ""
            more = " and a larger sweep.max_gpu_hours" if sweep.count("unstarted") else ""
            _say(f"finish it with the same command{without} and sweep.resume={sweep.folder}{more}")


def _may_end_better(outcome: Outcome) -> bool:
    """Whether the same command, given again, may finish the cell: wrong input stays wrong."""
    if outcome.state == "failed":
        return outcome.cause != "config"
    return outcome.state in ("interrupted", "unstarted")


def _sweeps() -> list[SweepReport]:
    """What this process ran; empty for --help, --cfg and completion, which run nothing."""
    launcher = sys.modules.get("scalewise.sweep.launcher")
    return [] if launcher is None else launcher.ran
