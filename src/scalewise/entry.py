"""``python train.py``: Hydra around the sweep, and one clear line for whatever is typed wrong."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from scalewise.config import EXIT_CONFIG_ERROR, ConfigError
from scalewise.defaults import FILE, saved, under
from scalewise.paths import conf_dir, discard_unused_folder, sweep_folder
from scalewise.records import RecordError
from scalewise.sweep.job import CellFailed, Outcome
from scalewise.train.rank import foreign_launch

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from scalewise.sweep.engine import SweepReport

EXIT_FAILED = 1
EXIT_SKIPPED = 3
EXIT_INTERRUPTED = 130


def train() -> int:
    """Run the cell or the sweep on the command line.

    Exit status: 0 every cell is done, 1 a cell failed, 2 the input is wrong, 3 nothing failed
    but a cell was skipped because this host cannot run it or left because sweep.max_gpu_hours is
    used up, 130 interrupted.
    """
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
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.argv[1:] = overrides_last(_with_defaults(sys.argv[1:]))
        _run_hydra()
        return _report()
    except KeyboardInterrupt:
        _say("interrupted: what was finished is kept")
        _say_how_to_finish()
        return EXIT_INTERRUPTED
    except CellFailed as error:
        # Hydra's sweeper gave up; what it got until then is reported all the same.
        _say(f"error: {error}")
        return _report() or EXIT_FAILED
    except Exception as error:
        line = explain(error)
        if line is None or wants_traceback:
            raise
        _say(f"error: {line}")
        return EXIT_FAILED if _is_the_hosts_fault(error) else EXIT_CONFIG_ERROR
    finally:
        discard_unused_folder()


def _with_defaults(arguments: list[str]) -> list[str]:
    """The saved default configuration before what was typed, and a line that says so."""
    defaults = under(arguments, saved())
    if defaults:
        _say(f"defaults of {FILE} (make defconfig-none removes them): {' '.join(defaults)}")
    return [*defaults, *arguments]


def overrides_last(arguments: list[str]) -> list[str]:
    """``a=1 -m b=2`` as ``-m a=1 b=2``: Hydra's parser takes the overrides in one piece only.

    Raises ConfigError for an option that Hydra does not have.
    """
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"{message}; python {Path(sys.argv[0]).name} --hydra-help lists them")

    parser.error = refuse  # type: ignore[method-assign]
    overrides = parser.parse_intermixed_args(arguments).overrides
    options = list(arguments)
    for override in reversed(overrides):
        # The last of its kind: an equal word before it is the value of an option.
        del options[len(options) - 1 - options[::-1].index(override)]
    return [*options, *overrides]


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


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
    from rich.console import Console

    from scalewise.report import build, print_console

    for sweep in sweeps:
        if sweep.count("done"):
            files = build(sweep.folder)
            print_console(sweep.folder, Console())
            _say(f"report: {files.markdown}")
            _say_where_runs_are(sweep.folder)
    _say_how_to_finish()
    for state, status in (
        ("failed", EXIT_FAILED),
        ("interrupted", EXIT_INTERRUPTED),
        ("skipped", EXIT_SKIPPED),
        ("unstarted", EXIT_SKIPPED),
    ):
        if any(sweep.count(state) for sweep in sweeps):
            return status
    return 0


def _say_where_runs_are(folder: Path) -> None:
    """How to open what the trackers were given."""
    from scalewise.records import SweepFolder

    for _, cell in SweepFolder(folder).cells():
        if not cell.is_done():
            continue
        tracking = cell.load_config().get("tracking", {})
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


def explain(error: BaseException) -> str | None:
    """What is wrong with the input, in one line; None if the input is not to blame."""
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, (ConfigError, RecordError)):  # such as a torn plan of a resumed sweep
        return str(error)
    if isinstance(error, OSError) and _is_the_hosts_fault(error):
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MissingConfigException):
        return _explain_missing(error)
    if isinstance(error, OverrideParseException):
        return f"{error.override}: not an override ({_flat(error)}); allowed: key=value"
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        for cause in _causes(error):
            if isinstance(cause, OmegaConfBaseException) and cause.full_key:
                return _explain_key(cause)
        return _flat(error)
    if isinstance(error, ValueError) and _raised_in(error).partition(".")[0] == "hydra":
        return _flat(error)  # Hydra refuses some input, such as model=3, with a bare ValueError
    return None


def _is_the_hosts_fault(error: BaseException) -> bool:
    """A full disk or a folder that is not the user's: said in one line, like wrong input."""
    return isinstance(error, OSError) and error.errno in (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EACCES,
        errno.ENAMETOOLONG,
        errno.ENOTDIR,
        errno.ENOENT,  # the sweep's folder was moved away while it ran
    )


def _raised_in(error: BaseException) -> str:
    """The module of the innermost frame."""
    module = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
    return module


def _causes(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _explain_missing(error: Any) -> str:
    missing = str(error.missing_cfg_file or "")
    group, _, option = missing.rpartition("/")
    options = sorted(o for o in (error.options or []))
    if not group or not options:
        return _flat(error)
    from scalewise.typed import closest

    return f"{group}: found {option!r}{closest(option, options)}; allowed: {', '.join(options)}"


def _explain_key(error: Any) -> str:
    from omegaconf import DictConfig
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError

    from scalewise.typed import closest

    key = str(error.full_key)
    if isinstance(error, (ConfigAttributeError, ConfigKeyError)):
        parent = error.parent_node
        allowed = [str(k) for k in parent] if isinstance(parent, DictConfig) else []
        name = key.rpartition(".")[2]
        hint = f"; allowed: {', '.join(allowed)}" if allowed else ""
        return f"{key}: unknown key{closest(name, allowed)}{hint}"
    return f"{key}: {_flat(error)}"


def _flat(error: BaseException) -> str:
    return " ".join(str(error).split())
