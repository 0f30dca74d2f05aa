"""``python train.py``: Hydra around the sweep, and one clear line for whatever is typed wrong."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from scalewise.command_line import overrides_last, with_defaults
from scalewise.ending import EXIT_FAILED, EXIT_INTERRUPTED, report, say_how_to_finish
from scalewise.errors import EXIT_CONFIG_ERROR
from scalewise.explain import explain, is_the_hosts_fault
from scalewise.paths import conf_dir, discard_unused_folder, sweep_folder
from scalewise.rank_environment import foreign_launch
from scalewise.streams import (
    EXIT_UNREAD,
    interrupt_on_polite_signals,
    is_unread,
    open_closed_streams,
    say,
    silence_unread,
)
from scalewise.sweep.job import CellFailed
from scalewise.sweep.sweep_report import sweeps_run

if TYPE_CHECKING:
    from omegaconf import DictConfig


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
