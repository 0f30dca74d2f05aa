"""Tables as wide as there is room: what does not fit beside the rest goes below it, never away."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as RichTable

from scalewise.report.table import Table

_LEAST_FIRST = (
    "batch",
    "study's label",
    "used per device",
    "mean RSS",
    "p50 / p99",
    "runs",
    "efficiency",
    "energy",
    "utilisation",
    "CPU",
    "peak",
    "speedup",
)
"""Beginnings of the headers that a narrow terminal shows in a second table, least missed first."""

_FEWEST_LABEL_COLUMNS = 12
"""The names of rows may fold at this width, if nothing else gives way."""


def fitted(table: Table, console: Console) -> Iterator[RichTable]:
    """``table``, or as many tables with the same rows as the console's width asks for.

    Only names of rows are ever folded; a figure stands whole on its line.
    """
    columns = list(range(1, len(table.headers)))
    while columns:
        shown = _that_fit(table, columns, console)
        yield _rich(table.only(shown), console)
        columns = [i for i in columns if i not in shown]


def _that_fit(table: Table, columns: list[int], console: Console) -> list[int]:
    """The columns to show first: the least missed give way, and then the last ones."""
    shown = list(columns)
    while len(shown) > 1 and _least_width(table.only(shown), console) > console.width:
        expendable = (
            i for start in _LEAST_FIRST for i in shown if table.headers[i].startswith(start)
        )
        shown.remove(next(expendable, shown[-1]))
    return shown


def _least_width(table: Table, console: Console) -> int:
    """Columns it takes with the names of its rows folded as far as a third of the console."""
    unlimited = console.options.update(max_width=100_000)
    widest = Measurement.get(console, unlimited, _rich(table, None)).maximum
    names = max((len(word) for word in (table.headers[0], *(r[0] for r in table.rows))), default=0)
    return widest - max(0, names - max(_FEWEST_LABEL_COLUMNS, console.width // 3))


def _rich(table: Table, console: Console | None) -> RichTable:
    """Made for the width of ``console``; without one, as wide as it likes."""
    made = RichTable(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, header in enumerate(table.headers):
        # The unit goes on a line of its own: headers are wider than what stands under them.
        words, bracket, unit = header.partition(" (")
        name = words.replace(" per ", "\nper ") + (f"\n({unit}" if bracket else "")
        justify: JustifyMethod = "right" if i in table.numeric else "left"
        made.add_column(name, justify=justify, no_wrap=i > 0 or console is None, overflow="fold")
    for row in table.rows:
        made.add_row(*map(escape, row))
    return made
