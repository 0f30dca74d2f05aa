"""``scalewise find-batch``: the search of ``batch_size=auto`` by itself, on this host."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from scalewise.config import EXIT_CONFIG_ERROR, ConfigError
from scalewise.paths import sweep_folder
from scalewise.records.batch_search import NAME, BatchSearchRecord, BatchTrial, load_batch_search
from scalewise.sweep.auto_batch import search_for
from scalewise.sweep.compose import compose_cell
from scalewise.sweep.data_files import check_files
from scalewise.sweep.display import make_display
from scalewise.sweep.local_engine import LocalEngine
from scalewise.sweep.own_code import check_own_code
from scalewise.sweep.plan import Request, make_cell, request

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def find_batch(argv: Sequence[str]) -> int:
    """Run the command; 2 for wrong use, 1 where the search fails."""
    options = _parse(argv)
    folder = Path(sweep_folder(options.overrides)).resolve()
    try:
        asked = _asked(options)
        found = find(asked, folder)
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_CONFIG_ERROR
    except SearchFailed as error:
        sys.stderr.write(f"scalewise find-batch: {error}\n")
        return EXIT_FAILED
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return EXIT_INTERRUPTED
    record, where = found
    sys.stdout.write(f"{as_text(record, asked.cell.scaling)}evidence: {where}\n")
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scalewise find-batch",
        description="Find the largest batch_size with which a cell trains without running out of "
        "memory, the same on every device, as train.py batch_size=auto does before it trains. "
        "Takes the overrides that train.py takes, batch_search.* among them. The evidence lies in "
        "a new folder below multirun/.",
    )
    parser.add_argument("overrides", nargs="*", help="e.g. model=gpt2 dataset=stdlib strategy=ddp")
    for flag, key in _FLAGS.items():
        parser.add_argument(f"--{flag}", dest=flag, metavar="N", help=f"the same as {key}=N")
    return parser.parse_args(argv)


_FLAGS = {
    "first": "batch_search.first",
    "most": "batch_search.max",
    "margin": "batch_search.margin",
    "timeout-s": "sweep.timeout_s",
}


def _asked(options: argparse.Namespace) -> Request:
    given = [
        f"{key}={getattr(options, flag)}"
        for flag, key in _FLAGS.items()
        if getattr(options, flag) is not None
    ]
    overrides = [*options.overrides, *given, "batch_size=auto"]
    one = request(overrides, compose_cell(overrides))
    check_own_code([one])
    check_files([one])
    return one


class SearchFailed(RuntimeError):  # noqa: N818 - says what happened
    """The ranks could not finish: one line."""


def find(asked: Request, folder: Path) -> tuple[BatchSearchRecord, Path]:
    """Search on devices of this host that nobody else holds; the record, and where it lies.

    Raises ConfigError for a cell that cannot run here, SearchFailed where a rank dies or the time
    is up.
    """
    cell = make_cell(search_for(asked), 0)
    engine = LocalEngine(folder, "exclusive", make_display())
    outcome = engine.run([cell]).outcomes[cell.planned.cell_id]
    path = engine.folder.cell(cell.planned.name).path
    record = load_batch_search(path) if outcome.state == "done" else None
    if record is None:
        if outcome.cause == "config":
            raise ConfigError(outcome.message)
        raise SearchFailed(f"{outcome.message}; see {path}")
    return record, path / NAME


def as_text(found: BatchSearchRecord, scaling: str) -> str:
    """The trials, and what to type."""
    lines = [f"{'a device':>9} {'outcome':12} {'peak MiB':>9} {'ms a step':>10}"]
    lines += [_trial(trial) for trial in found.trials]
    return "\n".join([*lines, found.line(scaling)]) + "\n"


def _trial(trial: BatchTrial) -> str:
    outcome: str = trial.outcome
    if trial.ranks_out_of_memory:
        outcome += f" rank {','.join(map(str, trial.ranks_out_of_memory))}"
    peak = trial.peak_allocated_mib
    peak = trial.peak_rss_mib if peak is None else peak
    shown = ["-" if value is None else f"{value:.4g}" for value in (peak, trial.step_time_ms)]
    return f"{trial.per_device_batch_size:9d} {outcome:12} {shown[0]:>9} {shown[1]:>10}"
