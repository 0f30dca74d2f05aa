"""The report on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from scalewise.analysis.summary import Analysis
from scalewise.report import findings, markdown, tables
from scalewise.report.tables import Table

_COLOURS = {
    "beneficial": "green",
    "marginal": "yellow",
    "prefer single": "magenta",
    "inconclusive": "yellow",
    "not comparable": "red",
}


def show(analysis: Analysis, console: Console) -> None:
    """Tables, verdicts with their reasons, and whatever went wrong."""
    console.print(f"[bold]{findings.counts(analysis)}[/bold]")
    if analysis.measured:
        console.print(_rich(tables.scaling_table(analysis)))
        console.print(_rich(tables.resource_table(analysis)))
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


def _rich(table: Table) -> RichTable:
    made = RichTable(header_style="bold", pad_edge=False)
    for i, header in enumerate(table.headers):
        made.add_column(header, justify="right" if i in table.numeric else "left")
    for row in table.rows:
        made.add_row(*map(escape, row))
    return made
