"""``scalewise mirror``: hand a sweep's records to its trackers, after the sweep."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from scalewise.commands import refuse
from scalewise.tracking import mirror


def mirror_records(argv: Sequence[str]) -> int:
    """Exit status 1 if something is not in the trackers afterwards."""
    parser = argparse.ArgumentParser(
        prog="scalewise mirror",
        description="Hand a sweep's records to the trackers that it asked for, whatever they lack. "
        "Exit status: 0, or 1 if something is not in them.",
    )
    parser.add_argument("folder", type=Path, help="a sweep's folder, e.g. multirun/<sweep>")
    folder = parser.parse_args(argv).folder
    if not (folder / "sweep.json").is_file():
        return refuse("mirror", f"{folder}: found no sweep.json; allowed: the folder of a sweep")
    status = mirror.main([str(folder), "--once"])
    if status == 0:
        sys.stdout.write(f"{folder}: its trackers hold everything\n")
    return status
