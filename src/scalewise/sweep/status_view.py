"""The table and the words for the state of a sweep: ``scalewise status``, and while it runs.

There a terminal shows a live table, and anything else plain lines.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import Final, TextIO

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from scalewise.host import from_here, open_console, plural, rows, say
from scalewise.records import Ending, RecordError, SweepFolder, sweeps_in, to_plain, unpacked
from scalewise.sweep.resume import way_to_finish
from scalewise.sweep.status import CellStatus, StatusReader, SweepStatus

_STYLES = {"done": "green", "failed": "red", "running": "bold", "waiting": "dim"}
_MOST_WORD = 24
"""Columns up to which a swept word is not broken."""
_FEWEST_NAME = 12
_SHOWN = 60
"""Rows of the table; of more cells, those that are neither done nor waiting come first."""


def show_status(folder: Path | None, every_s: float | None, *, as_json: bool) -> None:
    """Print where a sweep stands: the newest in ``multirun/`` without a folder.

    With ``every_s`` again and again, that many seconds apart, until it has ended or Ctrl-C.
    Raises :class:`RecordError` where there is no sweep to read.
    """
    from scalewise.analysis import no_sweep, sweep_folder

    given = folder or newest_sweep(Path("multirun"))
    folder = unpacked(given)
    cells = folder.glob("*/config.yaml")
    if not sweep_folder(folder).plan_path.exists() and next(cells, None) is None:
        raise RecordError(no_sweep(given, folder))  # in the words of the other commands
    # A table has no more rows: to read the steps of thousands of cells takes seconds.
    reader = StatusReader(folder, None if as_json else _SHOWN)
    console = open_console()
    live: AbstractContextManager[Live | None] = nullcontext(None)
    has_run = every_s is None
    if every_s is not None and not as_json and console.is_terminal:
        live = Live(console=console, auto_refresh=False)
    with suppress(KeyboardInterrupt), live as table:
        for found in _readings(reader, every_s):
            status = replace(found, folder=str(given))
            has_run = has_run or found.running or found.held is None
            if as_json:
                plain = {**to_plain(status), "count": status.count()}
                print(json.dumps(plain, allow_nan=False), flush=True)  # noqa: T201
            elif table is None:
                console.print(render(status, console.width), soft_wrap=True)
            else:
                table.update(render(status, console.width), refresh=True)
    if not has_run:
        say("nothing runs there; a sweep that still prepares is to be seen once it says start")


def _readings(reader: StatusReader, every_s: float | None) -> Iterator[SweepStatus]:
    """The sweep now; with ``every_s`` again as long as somebody runs it, or may: between cells."""
    while True:
        status = reader.read()
        yield status
        if every_s is None or not (status.running or (status.held is None and status.to_do)):
            return
        time.sleep(every_s)


def newest_sweep(parent: Path) -> Path:
    """The sweep in ``parent`` whose plan was written last. Raises :class:`RecordError`."""
    sweeps = sweeps_in(parent)
    if not sweeps:
        raise RecordError(f"{parent}: no sweep here; give the folder of one")
    return max(sweeps, key=lambda sweep: SweepFolder(sweep).plan_path.stat().st_mtime)


def counts(status: SweepStatus) -> str:
    """How many cells are done and how many are in other states, but for those that wait."""
    by_state, total = status.count(), len(status.cells)
    done = by_state.get("done", 0)
    if status.round is None:
        words = [f"{done}/{total} {plural(total, 'cell')} done"]
    else:
        words = [f"{done} {plural(done, 'cell')} done", f"round {status.round}"]
    others = ("failed", "skipped", "interrupted", "running")
    return ", ".join(words + [f"{by_state[one]} {one}" for one in others if one in by_state])


def left_words(status: SweepStatus) -> str:
    """``about 4.2 s left``; no figure for less than a second, which no estimate tells."""
    seconds = status.seconds_left
    if seconds is None:
        return ""
    if status.round is not None:
        return "more may come" if seconds < 1 else f"at least {duration(seconds)} left"
    return "nearly done" if seconds < 1 else f"about {duration(seconds)} left"


def progress_line(status: SweepStatus, width: int) -> str:
    """How far a running sweep is; where ``width`` has room, at which step its only cell is."""
    line = ", ".join(filter(None, (counts(status), left_words(status))))
    running = [cell for cell in status.cells if cell.state == "running"]
    with_step = f"{line}: {_step(running[0])}" if len(running) == 1 else line
    return with_step if len(with_step) <= width else line


def estimate_line(status: SweepStatus) -> str:
    left = len(status.to_do)
    ended = [] if status.running else [cell.ending for cell in status.cells]
    again = f"\n{way}" if (way := way_to_finish(Path(status.folder), ended)) else ""
    if not left or not (again or status.running):
        unfinished = len(status.cells) - status.count().get("done", 0)
        return "ended" if not unfinished else f"ended; {unfinished} without a result{again}"
    ended_badly = {cell.state for cell in status.to_do} & {"failed", "skipped"}
    told = f", {' and '.join(sorted(ended_badly))} ones included" if ended_badly else ""
    if status.seconds_left is None:
        return f"{left} to do{told}; nothing measured yet to tell how long{again}"
    if not status.running:
        took = duration(status.seconds_left)
        lead = "not known to run" if status.held is None else "not running"
        return f"{lead}; {left} to do{told}, would take about {took}{again}"
    clock = time.strftime("%H:%M:%S", time.localtime(status.time + status.seconds_left))
    return f"{left_words(status)}: ends {'about' if status.round is None else 'after'} {clock}"


def render(status: SweepStatus, width: int) -> RenderableType:
    """The table of cells; below it what went wrong, counts and the estimate."""
    from scalewise.analysis import ending_lines

    shown = list(status.cells)
    if len(shown) > _SHOWN:
        shown = sorted(shown, key=lambda cell: cell.state in ("done", "waiting"))[:_SHOWN]
    more = f" ({hidden} not shown)" if (hidden := len(status.cells) - len(shown)) else ""
    ended = [(cell.label, cell.ending, cell.log) for cell in status.cells if cell.ending.message]
    problems = [f"{cell.name}: {cell.problem}" for cell in status.cells if cell.problem]
    last = [f"{status.folder}: {counts(status)}{more}", *estimate_line(status).split("\n")]
    told = [(ending_lines(ended), "red"), (problems, "yellow"), (last, "bold")]
    lines = (Text("\n".join(rows(t, width)), style) for texts, style in told for t in texts)
    return Group(_table(shown, width), *lines)


def render_running(status: SweepStatus, width: int) -> RenderableType:
    """How far the sweep is, and the cells that run: a terminal of few lines cuts the end off."""
    running = [cell for cell in status.cells if cell.state == "running"]
    words = Text(progress_line(status, width), style="bold", no_wrap=True, overflow="ellipsis")
    return Group(words, _table(running, width)) if running else words


def _table(cells: Sequence[CellStatus], width: int) -> Table:
    """A row a cell, without empty columns; where room is short, names go on below, at a hyphen.

    While a cell runs, columns are there before their values, and as wide as these may become.
    """
    columns = {name: [*map(of, cells)] for name, of in _COLUMNS.items()}
    runs = any(cell.state == "running" for cell in cells)
    step = max([9, *(2 * len(str(cell.total_steps)) + 1 for cell in cells if cell.total_steps)])
    wide = {"step": step, "time": _DURATION, "left": _DURATION} if runs else {}
    shown = {name: column for name, column in columns.items() if any(column) or name in wide}
    widest = max((len(word) for swept in columns["swept"] for word in swept.split()), default=0)
    widths = {"swept": max(5, min(_MOST_WORD, widest)), "cell": None}
    others = (widths.get(name) or max(len(name), wide.get(name, 0), *map(len, column))
              for name, column in shown.items() if name != "cell")  # fmt: skip
    room = max(_FEWEST_NAME, width - sum(2 + columns for columns in others))
    names = (name if len(name) <= room else name.replace("-", "- ") for name in shown["cell"])
    shown["cell"] = [fill(name, room, break_long_words=False).replace("- ", "-") for name in names]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in shown:
        justify: JustifyMethod = "left" if name in ("cell", "state", "swept") else "right"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name not in widths,
                         width=widths.get(name), min_width=wide.get(name))  # fmt: skip
    for cell, *row in zip(cells, *shown.values(), strict=True):
        table.add_row(*map(Text, row), style=_STYLES.get(cell.state, "yellow"))
    return table


def _step(cell: CellStatus) -> str:
    if cell.state == "running" and not cell.step:
        return "starting"
    goal = cell.total_steps or 0  # beyond which a program that decides on its end may go on
    total = f"/{goal}" if cell.state == "running" and goal >= (cell.step or 0) else ""
    return "" if cell.step is None else f"step {cell.step}{total}"


_COLUMNS: Final[Mapping[str, Callable[[CellStatus], str]]] = {
    "cell": lambda cell: cell.name,
    "state": lambda cell: cell.state,
    "swept": lambda cell: cell.swept,
    "step": lambda cell: _step(cell).removeprefix("step "),
    "samples/s": lambda c: f"{rate:,.0f}" if (rate := c.global_samples_per_s) is not None else "",
    "time": lambda cell: "" if cell.elapsed_s is None else _short(cell.elapsed_s),
    "left": lambda cell: _short(cell.seconds_left)
    if cell.state == "running" and cell.seconds_left is not None else "",
}  # fmt: skip

_DURATION = len("59.9 min")


def _short(seconds: float) -> str:
    """``4.2 s``, ``3.3 min`` or ``2.1 h``: up to 8 columns."""
    if seconds < 60:
        return duration(seconds)
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def duration(seconds: float) -> str:
    """``4.2 s``, ``3 min 20 s`` or ``2 h 05 min``; never ``0.0 s``."""
    if seconds < 0.05:
        return "under 0.1 s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


_TABLE_EVERY_S = 1.0
_LINE_EVERY_S = 10.0
_SLOW_START_S = 60.0
"""Seconds after which a cell without a step is told of: a start takes a few."""
_LINE_COLUMNS = 80
_INDENT = " " * len("start    ")


class Display:
    """A table redrawn in place on a terminal, elsewhere plain lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_tick = time.monotonic()
        self._last_line = ""
        self._last_message = ""
        self._told_of_slow_start = False
        self._live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()

    def started(self, name: str, devices: int) -> None:
        """A cell has started; the next tick of a table shows it."""
        if self._live is None:
            self._say(f"start    {name} on {devices} {plural(devices, 'device')}")

    def ended(self, name: str, ending: Ending, global_samples_per_s: float | None = None) -> None:
        style = {"done": "green", "failed": "red"}.get(ending.outcome, "yellow")
        why = ending.message
        if ending.outcome == "skipped":
            why = "for the same reason" if why == self._last_message else why
            self._last_message = ending.message
        took = "" if ending.elapsed_s is None else f" in {duration(ending.elapsed_s)}"
        rate = "" if global_samples_per_s is None else f", {global_samples_per_s:,.0f} samples/s"
        if ending.outcome == "done" and not took:
            why = why or "was done before"
        said = rate if ending.outcome == "done" and took else f": {why}"
        self._say(f"{ending.outcome:8} {name}{took}{said}", style)

    def is_due(self) -> bool:
        """Whether it is time for :meth:`tick`: to read a status costs the host some work."""
        every_s = _LINE_EVERY_S if self._live is None else _TABLE_EVERY_S
        return time.monotonic() - self._last_tick >= every_s

    def tick(self, status: SweepStatus) -> None:
        """Show the status; a line that would say what the last one said is left out."""
        self._last_tick = time.monotonic()
        slow = [cell for cell in status.cells if cell.state == "running" and not cell.step
                and (cell.elapsed_s or 0.0) > _SLOW_START_S]  # fmt: skip
        if slow and not self._told_of_slow_start:
            self._told_of_slow_start = True
            logs = f"{from_here(status.folder)}/{slow[0].name}/logs"
            self.note(
                f"slow     {slow[0].label}: no step in {duration(slow[0].elapsed_s or 0.0)}, which "
                f"fetching data may take; what it says: {logs}; Ctrl-C ends "
                "the sweep, sweep.start_timeout_s such a cell"
            )
        if self._live is not None:
            self._live.update(render_running(status, self._console.width), refresh=True)
            return
        line = progress_line(status, self._console.width - len(_INDENT))
        if line != self._last_line:
            self._last_line = line
            self._say(f"{_INDENT}{line}")

    def note(self, text: str) -> None:
        self._say(text, "yellow")

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _say(self, text: str, style: str = "") -> None:
        """Print a line. On a terminal what has no room goes on below it, no name or path broken."""
        width = self._console.width if self._console.is_terminal else sys.maxsize
        lines = "\n".join(rows(text, width, _INDENT))
        self._console.print(Text(lines, style=style), soft_wrap=True)


def make_display(stream: TextIO | None = None) -> Display:
    return Display(open_console(stream or sys.stderr, _LINE_COLUMNS))
