"""``python train.py``: Hydra around the sweep, and one clear line for whatever is typed wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalewise.config import EXIT_CONFIG_ERROR, ConfigError
from scalewise.paths import conf_dir, sweep_folder
from scalewise.train.rank import foreign_launch

if TYPE_CHECKING:
    from omegaconf import DictConfig

EXIT_FAILED = 1
EXIT_SKIPPED = 3
EXIT_INTERRUPTED = 130


def train() -> int:
    """Run the cell or the sweep on the command line.

    Exit status: 0 every cell is done, 1 a cell failed, 2 the input is wrong, 3 nothing failed
    but a cell was skipped because this host cannot run it, 130 interrupted.
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
    try:
        _run_hydra()
    except KeyboardInterrupt:
        _report()
        _say("interrupted: what was finished is kept")
        return EXIT_INTERRUPTED
    except Exception as error:
        line = explain(error)
        if line is None or wants_traceback:
            raise
        _say(f"error: {line}")
        return EXIT_CONFIG_ERROR
    return _report()


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
        except ConfigError as error:
            # Hydra would announce it in a line of its own; train() says it once.
            held.append(error)
            return None

    hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(task)()
    if held:
        raise held[0]


def _report() -> int:
    """Say what the sweeps of this process came to, and return the exit status."""
    launcher = sys.modules.get("scalewise.sweep.launcher")
    if launcher is None:
        return 0  # --help, --cfg and completion run nothing
    from rich.console import Console

    from scalewise.report import build, print_console

    failed = skipped = interrupted = 0
    for sweep in launcher.finished:
        if sweep.count("done"):
            files = build(sweep.folder)
            print_console(sweep.folder, Console())
            _say(f"report: {files.markdown}")
        failed += sweep.count("failed")
        skipped += sweep.count("skipped")
        interrupted += sweep.count("interrupted")
        if failed or interrupted:
            _say(f"finish it with the same command and sweep.resume={sweep.folder}")
    if failed:
        return EXIT_FAILED
    return EXIT_INTERRUPTED if interrupted else EXIT_SKIPPED if skipped else 0


def explain(error: BaseException) -> str | None:
    """What is wrong with the input, in one line; None if the input is not to blame."""
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, MissingConfigException):
        return _explain_missing(error)
    if isinstance(error, OverrideParseException):
        return f"{error.override}: not an override ({_flat(error)}); allowed: key=value"
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        for cause in _causes(error):
            if isinstance(cause, OmegaConfBaseException) and cause.full_key:
                return _explain_key(cause)
        return _flat(error)
    return None


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
