"""``scalewise report``: the tables and verdicts of a sweep, and its report written anew."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scalewise.commands import refuse
from scalewise.ending import EXIT_INVALID
from scalewise.records import RecordError, SweepFolder
from scalewise.streams import say
from scalewise.terminal import open_console

if TYPE_CHECKING:
    from scalewise.analysis.summary import Analysis


def write_report(argv: Sequence[str]) -> int:
    """Write and print; exit status 2 for a folder without a sweep or that takes no report, 4 where
    a verdict is invalid."""
    given = _report_options(argv)
    folder: Path = given.folder
    # What draws takes a second to load: not for --help.
    from scalewise.analysis.load import load_sweep
    from scalewise.analysis.summary import analyse
    from scalewise.analysis.target import SamplesError, read_samples
    from scalewise.report import ReportFolderError, build, print_console

    try:
        samples = None if given.samples is None else read_samples(given.samples)
        analysis = analyse(load_sweep(folder))
        files = build(analysis, given.out, samples)
    except (RecordError, ReportFolderError, SamplesError) as error:
        return refuse("report", error)
    except OSError as error:
        target = given.out or SweepFolder(folder).report_path
        problem = f"cannot write into {target}: {error.strerror}"
        return refuse("report", f"{problem}; give another folder: --out FOLDER")
    print_console(analysis, open_console(), samples)
    done = "written over the earlier one" if files.replaced else "written"
    sys.stdout.write(f"report: {files.markdown}, {done} with {len(files.plots)} plots beside it\n")
    for problem in files.problems:
        say(f"warning: {problem}")
    status = _study(analysis, given) if given.study else 0
    return status or (EXIT_INVALID if files.invalid else 0)


def _report_options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scalewise report",
        description="Print the tables and verdicts of a sweep, and write its report anew from its "
        "records: Markdown, plots, JSON and CSV in FOLDER/report, over what is there, or in --out. "
        "No record is changed.",
    )
    parser.add_argument("folder", type=Path, help="a sweep's folder, e.g. multirun/<sweep>")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="write the report there, and nothing into the sweep's folder",
    )
    parser.add_argument(
        "--samples", metavar="N", help="also the time and cost of training on N samples, e.g. 1e9"
    )
    parser.add_argument(
        "--study", action="store_true", help="also write study/ into it: plots, CSV and LaTeX"
    )
    parser.add_argument("--warmup-epochs", type=int, default=1, help="--study: epochs left out")
    parser.add_argument("--datasets", help="--study: only these, with commas between them")
    return parser.parse_args(argv)


def _study(analysis: Analysis, given: argparse.Namespace) -> int:
    from scalewise.report import build_study

    if given.warmup_epochs < 0:
        found = f"--warmup-epochs: found {given.warmup_epochs}"
        return refuse("report", f"{found}; allowed: 0 or more")
    datasets = tuple(given.datasets.split(",")) if given.datasets else ()
    try:
        files, problems = build_study(
            analysis, given.out, warmup_epochs=given.warmup_epochs, datasets=datasets
        )
    except ValueError as error:
        return refuse("report", error)
    sys.stdout.write("".join(f"study: {file}\n" for file in files))
    for line in problems:
        say(f"warning: {line}")
    return 0
