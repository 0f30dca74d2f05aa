"""The report on a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from scalewise.analysis.summary import Analysis
from scalewise.report import (
    alike,
    cost,
    disturbances,
    doubts,
    examined,
    faults,
    findings,
    markdown,
    provenance,
    swept,
    tables,
    target,
    trackers,
    unfinished,
    widths,
)
from scalewise.report.fitted import fitted
from scalewise.report.table import Table

_COLOURS = {
    "invalid": "red",
    "beneficial": "green",
    "marginal": "yellow",
    "prefer single": "magenta",
    "inconclusive": "yellow",
    "ceiling": "cyan",
    "not comparable": "red",
}


def show(analysis: Analysis, console: Console, samples: int | None = None) -> None:
    """Tables, verdicts with their reasons, and whatever went wrong.

    With ``samples`` also the time and cost of so many.
    """
    console.print(f"[bold]{findings.counts(analysis)}[/bold]")
    _show_lines(provenance.code_lines(analysis), "dim", console)
    for label in provenance.labels(analysis):
        console.print(f"[red]{escape(label)}[/red]")
    if analysis.measured:
        constant = alike.same_in_every_row(analysis)
        if constant:
            console.print(f"[dim]{escape(constant)}[/dim]")
        for table in (tables.scaling_table(analysis), tables.resource_table(analysis)):
            _show_table(table, console)
        _show_lines(swept.fastest(analysis), "bold", console)
        _show_widths(analysis, console)
        _show_cost(analysis, console)
        if samples is not None:
            _show_target(analysis, samples, console)
    answers = findings.answers(analysis)
    for label, verdict, reason in answers:
        colour = _COLOURS[verdict]
        console.print(
            f"[bold]{escape(label)}[/bold]: [{colour}]{verdict}[/{colour}]. {escape(reason)}"
        )
    if not answers:
        console.print(escape(markdown.no_answer(analysis).replace("`", "")))
    for line in unfinished.lines(analysis):
        # A path that is broken over lines cannot be opened.
        console.print(Text(line, style="red"), soft_wrap=True)
    for line in examined.doctor_lines(analysis):
        console.print(f"[cyan]doctor:[/cyan] {escape(line)}")
    # Beside timed cells they are in report.md: the screen is for what the user asked.
    if not analysis.measured:
        for table in examined.examined_tables(analysis):
            _show_table(table, console)
    lines = {
        "limit": findings.limits(analysis),
        "fault": faults.lines(analysis),
        "finding": disturbances.found_lines(analysis),
        "doubt": doubts.warnings(analysis),
        "tracker": trackers.problems(analysis),
    }
    for kind, found in lines.items():
        for line in found:
            console.print(f"[yellow]{kind}:[/yellow] {escape(line)}")


def _show_widths(analysis: Analysis, console: Console) -> None:
    side_by_side = widths.widths_table(analysis)
    if not side_by_side.rows:
        return
    _show_table(side_by_side, console)
    _show_lines(widths.lines(analysis), "bold", console)


def _show_target(analysis: Analysis, samples: int, console: Console) -> None:
    """Below the prices, which are those of its USD too: they are not said twice."""
    found = target.target_table(analysis, samples)
    if not found.rows:
        return
    console.print(f"[bold]{target.title(samples)}[/bold]")
    _show_table(found, console)
    if not cost.cost_table(analysis).rows:
        _show_lines(target.price_lines(analysis), "dim", console)


def _show_cost(analysis: Analysis, console: Console) -> None:
    """Above the answers, which name the prices; nothing where none is known."""
    costs = cost.cost_table(analysis)
    if not costs.rows:
        return
    _show_table(costs, console)
    _show_lines([*cost.price_lines(analysis), f"USD are {cost.EXCLUDED}"], "dim", console)


def _show_table(table: Table, console: Console) -> None:
    for part in fitted(table, console):
        console.print(part)


def _show_lines(lines: Iterable[str], style: str, console: Console) -> None:
    for line in lines:
        console.print(f"[{style}]{escape(line)}[/{style}]")
