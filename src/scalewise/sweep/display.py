"""Says how a running sweep is going: a live table on a terminal, elsewhere plain lines."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from scalewise.host import open_console, plural
from scalewise.records import Ending
from scalewise.sweep.status import SweepStatus
from scalewise.sweep.status_view import duration, progress_line, render_running

_TABLE_EVERY_S = 1.0
_LINE_EVERY_S = 10.0
_LINE_COLUMNS = 80
_INDENT = " " * len("start    ")


class Display:
    """A table redrawn in place on a terminal, elsewhere plain lines.

    Args:
        console: takes it.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_tick = time.monotonic()
        self._last_line = ""
        self._last_message = ""
        self._live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()

    def started(self, name: str, devices: int) -> None:
        """A cell has started; the next tick of a table shows it."""
        if self._live is None:
            self._say(f"start    {name} on {devices} {plural(devices, 'device')}")

    def ended(self, name: str, ending: Ending, global_samples_per_s: float | None = None) -> None:
        """A cell has ended for good."""
        style = {"done": "green", "failed": "red"}.get(ending.outcome, "yellow")
        if ending.outcome == "skipped":
            if ending.message == self._last_message:
                ending = replace(ending, message="for the same reason")
            else:
                self._last_message = ending.message
        self._say(ended_line(name, ending, global_samples_per_s), style)

    def is_due(self) -> bool:
        """Whether it is time for :meth:`tick`: to read a status costs the host some work."""
        every_s = _LINE_EVERY_S if self._live is None else _TABLE_EVERY_S
        return time.monotonic() - self._last_tick >= every_s

    def tick(self, status: SweepStatus) -> None:
        """Show the status; a line that would say what the last one said is left out."""
        self._last_tick = time.monotonic()
        if self._live is not None:
            self._live.update(render_running(status, self._console.width), refresh=True)
            return
        line = progress_line(status, _LINE_COLUMNS - len(_INDENT))
        if line != self._last_line:
            self._last_line = line
            self._say(f"{_INDENT}{line}")

    def note(self, text: str) -> None:
        self._say(text, "yellow")

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _say(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)


def make_display(stream: TextIO | None = None) -> Display:
    """A display on standard error by default."""
    return Display(open_console(stream or sys.stderr))


def ended_line(name: str, ending: Ending, global_samples_per_s: float | None) -> str:
    """How the cell called ``name`` ended, in one line."""
    took = "" if ending.elapsed_s is None else f" in {duration(ending.elapsed_s)}"
    if ending.outcome != "done":
        return f"{ending.outcome:8} {name}{took}: {ending.message}"
    if ending.elapsed_s is None:
        return f"done     {name}: {ending.message or 'was done before'}"
    rate = "" if global_samples_per_s is None else f", {global_samples_per_s:,.0f} samples/s"
    return f"done     {name}{took}{rate}"
