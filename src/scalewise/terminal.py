"""Standard output as it really is: a terminal has a width, a pipe or a file has none."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from rich.console import Console

_NO_WIDTH = 10_000
"""Columns where nothing limits them: lines are as long as what they say."""


def open_console(stream: TextIO | None = None) -> Console:
    """A console as wide as the terminal behind ``stream`` (standard output), or without limit.

    rich takes a pipe to be 80 columns wide and would break or cut what is longer. Whoever sets
    ``COLUMNS`` has said how wide it is.
    """
    console = Console(file=stream or sys.stdout, highlight=False)
    if console.is_terminal or os.environ.get("COLUMNS", "").isdecimal():
        return console
    console.width = _NO_WIDTH
    return console
