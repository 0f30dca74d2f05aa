"""Shows a person how far a running sweep is: a live table, or plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from scalewise.host import open_console, plural
from scalewise.records import CellFolder, Heartbeat, RecordError, SweepFolder, read_heartbeat
from scalewise.supervisor import Outcome
from scalewise.sweep.plan import Cell

_LINE_EVERY_S = 10.0
_LINE_COLUMNS = 80
"""Of a line of progress where nothing says how wide it may be."""
_BAR_COLUMNS = range(8, 25)
_NAME_COLUMNS = 20
"""That a name keeps where other facts can give way."""


@dataclass(frozen=True)
class Progress:
    """A running cell at a glance."""

    name: str
    world_size: int
    step: int
    total_steps: int | None
    global_samples_per_s: float | None
    """From the start of training, warm-up included: an indication, not a measurement."""
    seconds_left: float | None = None
    """Until the last step, at the pace so far; None before the first step or without a total."""


@dataclass
class Tally:
    """How far a sweep is."""

    total: int
    """Cells that are planned so far."""
    done: int = 0
    failed: int = 0
    skipped: int = 0
    interrupted: int = 0
    unstarted: int = 0
    already_done: int = 0
    round: int | None = None
    """The latest that has begun, where more cells may come; None where ``total`` is all."""

    @property
    def ended(self) -> int:
        return self.done + self.failed + self.skipped + self.interrupted + self.unstarted

    def count(self, outcome: Outcome) -> None:
        setattr(self, outcome.state, getattr(self, outcome.state) + 1)

    def __str__(self) -> str:
        of_total = "" if self.round is not None else f"/{self.total}"
        among = self.done if self.round is not None else self.total
        words = [f"{self.done}{of_total} {plural(among, 'cell')} done"]
        if self.already_done:
            words[0] += f" ({self.already_done} before)"
        words += [] if self.round is None else [f"round {self.round}"]
        for name in ("failed", "skipped", "interrupted", "unstarted"):
            if getattr(self, name):
                words.append(f"{getattr(self, name)} {name}")
        return ", ".join(words)


def progress_of(name: str, folder: CellFolder, world_size: int) -> Progress:
    """Read a cell's heartbeats; the slowest rank says how far it is."""
    beats = [read_heartbeat(folder.heartbeat_path(rank)) for rank in range(world_size)]
    live: list[Heartbeat] = [b for b in beats if b is not None]
    if len(live) < world_size or not all(b.started_at for b in live):
        return Progress(name, world_size, 0, None, None)
    slowest = min(live, key=lambda b: b.step)
    elapsed = slowest.time - slowest.started_at
    done = slowest.step - slowest.first_step
    fed = sum(b.samples - b.first_samples for b in live)
    rate = fed / elapsed if elapsed > 0 and done else None
    total = slowest.total_steps if slowest.total_steps >= 0 else None
    left = None
    if total is not None and done:
        left = max(total - slowest.step, 0) * elapsed / done
    return Progress(name, world_size, slowest.step, total, rate, left)


class Display:
    """Says how a sweep is going: a table redrawn in place on a terminal, elsewhere plain lines.

    Args:
        console: takes it.
        folder: of the sweep, whose plan tells what was swept; None to show names alone.
    """

    def __init__(self, console: Console, folder: Path | None = None) -> None:
        self._console = console
        self._folder = folder
        self._swept: dict[str, str] = {}
        self._last_tick = time.monotonic()
        self._last_row = ""
        self._last_message = ""
        self._live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._live = Live(console=console, refresh_per_second=4, transient=True)
            self._live.start()

    def started(self, cell: Cell, world_size: int) -> None:
        """A cell has started on ``world_size`` devices; the next tick of a table shows it."""
        if self._live is None:
            where = f" on {_devices(world_size)}"
            name = self._fitted(self._name(cell), len("start    ") + len(where))
            self._say(f"start    {name}{where}")

    def ended(self, cell: Cell, outcome: Outcome, seconds: float | None) -> None:
        """A cell has ended for good. A message is told whole, however long it is."""
        style = {"done": "green", "failed": "red"}.get(outcome.state, "yellow")
        name = self._name(cell)
        if not outcome.message:
            name = self._fitted(name, len(ended_line("", outcome, seconds)))
        if outcome.state == "skipped":
            if outcome.message == self._last_message:
                outcome = replace(outcome, message="for the same reason")
            else:
                self._last_message = outcome.message
        self._say(ended_line(name, outcome, seconds), style)

    def tick(self, tally: Tally, running: Sequence[Progress], seconds_left: float | None) -> None:
        """Called about twice a second; a line is written every ten seconds,
        unless it would say what the last one said."""
        said = str(tally)
        if seconds_left is not None:
            said += f", {left_words(seconds_left, more_may_come=tally.round is not None)}"
        if self._live is not None:
            line = Text(said, style="bold", no_wrap=True, overflow="ellipsis")
            self._live.update(Group(*self._rows(running), line))
        elif time.monotonic() - self._last_tick >= _LINE_EVERY_S:
            self._last_tick = time.monotonic()
            width = min(self._console.width, _LINE_COLUMNS)
            row = f"         {said}{_running_words(running, width - 9 - len(said))}"
            if row != self._last_row:
                self._last_row = row
                self._say(row)

    def _rows(self, running: Sequence[Progress]) -> Iterator[Table | Text]:
        """A row a cell, as far as the terminal reaches; the bar gives way first, the step last."""
        if not running:
            return
        width, shown = self._console.width, running[: max(1, self._console.height - 3)]
        facts = [list(map(fact, shown)) for fact in (_devices_of, _rate, _step)]
        while (taken := _columns_of(facts)) > width - _NAME_COLUMNS and len(facts) > 1:
            del facts[0]
        bar = min(width - taken - max(len(one.name) for one in shown) - 2, _BAR_COLUMNS[-1])
        table = Table.grid(padding=(0, 2, 0, 0))
        names = [self._fitted(one.name, taken) for one in shown]
        # Without a total it pulses.
        bars = [ProgressBar(one.total_steps, one.step, width=bar) for one in shown]
        columns = [names, *([bars] if bar in _BAR_COLUMNS else []), *facts]
        for _ in columns:
            table.add_column(no_wrap=True)
        for row in zip(*columns, strict=True):
            table.add_row(*row)
        yield table
        if len(running) > len(shown):
            yield Text(f"and {len(running) - len(shown)} more running", no_wrap=True)

    def _fitted(self, name: str, taken: int) -> str:
        """``name`` in what a line has left beside ``taken`` columns."""
        return shortened(name, self._console.width - taken)

    def note(self, text: str) -> None:
        self._say(text, "yellow")

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _say(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)

    def _name(self, cell: Cell) -> str:
        """``mlp-tabular-ddp-r0-1f463a41 (lr=0.1)``: with what was swept, once the plan tells."""
        from scalewise.analysis import swept_words

        planned = cell.planned
        if self._folder is not None and planned.cell_id not in self._swept:
            try:
                cells = SweepFolder(self._folder).load_plan().cells
            except RecordError:
                cells = ()
            self._swept = {planned.cell_id: "", **swept_words(cells)}
        words = self._swept.get(planned.cell_id)
        return f"{planned.name} ({words})" if words else planned.name


def make_display(stream: TextIO | None = None, folder: Path | None = None) -> Display:
    """The display of the sweep in ``folder``, on standard error by default."""
    return Display(open_console(stream or sys.stderr), folder)


def ended_line(name: str, outcome: Outcome, seconds: float | None) -> str:
    """How the cell called ``name`` ended, in one line."""
    took = "" if seconds is None else f" in {duration(seconds)}"
    if outcome.state != "done":
        return f"{outcome.state:8} {name}{took}: {outcome.message}"
    if seconds is None:
        return f"done     {name}: {outcome.message or 'was done before'}"
    rate = outcome.global_samples_per_s
    return f"done     {name}{took}" + ("" if rate is None else f", {rate:,.0f} samples/s")


def left_words(seconds: float, more_may_come: bool = False) -> str:
    """``about 4.2 s left``; no figure for less than a second, which no estimate tells."""
    if more_may_come:
        return "more may come" if seconds < 1 else f"at least {duration(seconds)} left"
    return "nearly done" if seconds < 1 else f"about {duration(seconds)} left"


def shortened(name: str, width: int) -> str:
    """``name`` in ``width`` columns, 8 at least, without its middle: cells differ at both ends."""
    width = max(width, 8)
    if len(name) <= width:
        return name
    tail = (width - 2) // 2
    return f"{name[: width - 2 - tail]}..{name[len(name) - tail :]}"


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


def _columns_of(facts: Sequence[Sequence[str]]) -> int:
    """Of a terminal, each with the two that part it from the next."""
    return sum(2 + max(map(len, column)) for column in facts)


def _devices_of(progress: Progress) -> str:
    return _devices(progress.world_size)


def _devices(count: int) -> str:
    return f"{count} {plural(count, 'device')}"


def _step(progress: Progress) -> str:
    if progress.step == 0 and progress.global_samples_per_s is None:
        return "starting"
    total = f"/{progress.total_steps}" if progress.total_steps is not None else ""
    return f"step {progress.step}{total}"


def _rate(progress: Progress) -> str:
    rate = progress.global_samples_per_s
    return "" if rate is None else f"{rate:,.0f} samples/s"


def _running_words(running: Sequence[Progress], width: int) -> str:
    """The cell that runs, or how many do, in ``width`` columns; empty where that is too little."""
    if len(running) != 1:
        said = f", {len(running)} running" if running else ""
        return said if len(said) <= width else ""
    facts = f" {_step(running[0])} {_rate(running[0])}".rstrip()
    room = width - len(": ") - len(facts)
    return "" if room < _NAME_COLUMNS else f": {shortened(running[0].name, room)}{facts}"
