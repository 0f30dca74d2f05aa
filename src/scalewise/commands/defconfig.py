"""``scalewise defconfig``: an experiment as the default of the runs to come."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from scalewise.commands import refuse
from scalewise.defaults import FILE, save
from scalewise.errors import ConfigError


def save_default(argv: Sequence[str]) -> int:
    """Write the file of this folder, and print what it holds."""
    parser = argparse.ArgumentParser(
        prog="scalewise defconfig",
        description="Save an experiment as the default of the runs in this folder.",
    )
    parser.add_argument("name", help="an experiment, with dashes or underscores; none removes it")
    parser.add_argument("--trackers", help="trackio, wandb, both with a comma between, or none")
    given = parser.parse_args(argv)
    try:
        lines = save(given.name, given.trackers.split(",") if given.trackers else ())
    except ConfigError as error:
        return refuse("defconfig", error)
    sys.stdout.write(f"{FILE}: {' '.join(lines) or 'removed'}\n")
    return 0
