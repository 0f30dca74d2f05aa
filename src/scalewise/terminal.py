"""Standard output as it really is: a terminal has a width, a pipe or a file has none."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

from rich.console import Console

_NO_WIDTH = 10_000
"""Columns where nothing limits them: lines are as long as what they say."""


def open_console(stream: TextIO | None = None) -> Console:
    """A console as wide as the terminal behind ``stream`` (standard output), or without limit.

    rich takes a pipe to be 80 columns wide and would break or cut what is longer. Whoever sets
    ``COLUMNS`` has said how wide it is; 0, as some shells and containers say, is no width.
    """
    console = Console(file=stream or sys.stdout, highlight=False)
    if console.is_terminal:
        console.width = console.width or shutil.get_terminal_size().columns
    elif not os.environ.get("COLUMNS", "").isdecimal() or not console.width:
        console.width = _NO_WIDTH
    return console
