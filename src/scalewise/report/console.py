"""The report on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as RichTable

from scalewise.analysis.summary import Analysis
from scalewise.report import findings, markdown, tables
from scalewise.report.tables import Table

_COLOURS = {
    "beneficial": "green",
    "marginal": "yellow",
    "prefer single": "magenta",
    "inconclusive": "yellow",
    "ceiling": "cyan",
    "not comparable": "red",
}

_LEAST_FIRST = (
    "batch",
    "seed's label",
    "used per device",
    "p50 / p99",
    "runs",
    "efficiency",
    "energy",
    "utilisation",
    "CPU",
    "peak",
)
"""Beginnings of the headers that a narrow terminal drops, least missed first."""


def show(analysis: Analysis, console: Console) -> None:
    """Tables, verdicts with their reasons, and whatever went wrong."""
    console.print(f"[bold]{findings.counts(analysis)}[/bold]")
    if analysis.measured:
        console.print(_fitted(tables.scaling_table(analysis), console))
        console.print(_fitted(tables.resource_table(analysis), console))
    answers = findings.answers(analysis)
    for label, verdict, reason in answers:
        colour = _COLOURS[verdict]
        console.print(
            f"[bold]{escape(label)}[/bold]: [{colour}]{verdict}[/{colour}]. {escape(reason)}"
        )
    if not answers:
        console.print(escape(markdown.no_answer(analysis).replace("`", "")))
    if analysis.unfinished:
        console.print(_rich(tables.unfinished_table(analysis)))
    lines = {
        "limit": findings.limits(analysis),
        "fault": findings.faults(analysis),
        "doubt": findings.warnings(analysis),
        "tracker": findings.tracker_problems(analysis),
    }
    for kind, found in lines.items():
        for line in found:
            console.print(f"[yellow]{kind}:[/yellow] {escape(line)}")


def _fitted(table: Table, console: Console) -> RichTable:
    """The table without its least columns, as far as the terminal is too narrow for all.

    What is dropped stands in report.md, and most of it in the sentences below the tables.
    """
    unlimited = console.options.update(max_width=1000)
    for header in _LEAST_FIRST:
        if Measurement.get(console, unlimited, _rich(table)).maximum <= console.width:
            break
        table = table.without(i for i, h in enumerate(table.headers) if h.startswith(header))
    return _rich(table)


def _rich(table: Table) -> RichTable:
    made = RichTable(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, header in enumerate(table.headers):
        # The unit goes on a line of its own: headers are wider than what stands under them.
        name = header.replace(" per ", "\nper ").replace(" (", "\n(")
        justify: JustifyMethod = "right" if i in table.numeric else "left"
        made.add_column(name, justify=justify, no_wrap=i == 0)
    for row in table.rows:
        made.add_row(*map(escape, row))
    return made
