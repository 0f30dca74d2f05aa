"""``scalewise import`` and ``scalewise export``: device series from and to GPU logs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from scalewise.commands import refuse
from scalewise.gpu.export import export_folder
from scalewise.gpu.seed_format import import_seed_file
from scalewise.records import CellFolder, RecordError
from scalewise.streams import say


def import_log(argv: Sequence[str]) -> int:
    """Read a log into the records of a cell, and print where they lie."""
    parser = argparse.ArgumentParser(
        prog="scalewise import",
        description="Read a GPU log (single- or multi-GPU JSON) into the records of a cell.",
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("cell", type=Path, help="the folder of the cell that gets the series")
    given = parser.parse_args(argv)
    try:
        path = import_seed_file(given.file, CellFolder(given.cell))
    except OSError as error:
        return refuse("import", _takes_nothing("cell", given.cell, error))
    except (RecordError, ValueError) as error:
        return refuse("import", error)
    sys.stdout.write(f"{path}\n")
    return 0


def export_logs(argv: Sequence[str]) -> int:
    """Write the series of a cell or a sweep, and print the files."""
    parser = argparse.ArgumentParser(
        prog="scalewise export",
        description="Write device series as gpu_stats_*.json and gpu_timeline.csv.",
    )
    parser.add_argument("folder", type=Path, help="the folder of a cell or of a sweep")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="write them there, a folder a cell of a sweep (default: into each cell)",
    )
    given = parser.parse_args(argv)
    try:
        exported = export_folder(given.folder, given.out)
    except OSError as error:
        target = given.folder if given.out is None else given.out
        return refuse("export", _takes_nothing("--out", target, error))
    except RecordError as error:
        return refuse("export", error)
    sys.stdout.writelines(f"{path}\n" for path in exported.written)
    for problem in exported.problems:
        say(f"scalewise export: left out: {problem}")
    return 1 if exported.problems else 0


def _takes_nothing(argument: str, folder: Path, error: OSError) -> str:
    """That ``folder``, given as ``argument``, cannot be written into, and what may be given."""
    if folder.exists() and not folder.is_dir():
        return f"{argument}: found {folder}, which is no folder; allowed: a folder, there or new"
    found = f"{argument}: found {folder}, which cannot be written into: {error.strerror or error}"
    return f"{found}; give another folder"
