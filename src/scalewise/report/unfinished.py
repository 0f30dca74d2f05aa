"""Cells without a result: why, at which line of code, and which log to open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath

from scalewise.analysis.blame import Fate, blame_last, fate_lines
from scalewise.analysis.cells import Cell
from scalewise.analysis.figures import MISSING
from scalewise.analysis.labels import swept_words
from scalewise.analysis.summary import Analysis
from scalewise.report.table import Table


def lines(analysis: Analysis) -> Iterator[str]:
    """For a terminal: cells of one fate in one line, and below it where to look."""
    swept = _swept(analysis)
    return fate_lines(
        [
            Fate(_name(cell, swept), cell.state, cell.failure, blame_last(cell.path, cell.attempts))
            for cell in analysis.unfinished
        ]
    )


def table(analysis: Analysis) -> Table:
    """For a page that may travel: paths inside the sweep, and files by their names."""
    swept = _swept(analysis)
    rows = []
    for cell in analysis.unfinished:
        found = blame_last(cell.path, cell.attempts)
        log = found.log and found.log.relative_to(analysis.sweep.path)
        rows.append(
            (
                cell.planned.name,
                swept[cell.planned.cell_id] or MISSING,
                cell.state,
                cell.failure,
                PurePath(found.at).name if found.at else MISSING,
                str(log or MISSING),
            )
        )
    headers = ("cell", "swept", "state", "reason", "raised at", "log")
    return Table(headers, tuple(rows)).without_empty_columns()


def _swept(analysis: Analysis) -> dict[str, str]:
    return swept_words([cell.planned for cell in analysis.sweep.cells])


def _name(cell: Cell, swept: Mapping[str, str]) -> str:
    words = swept[cell.planned.cell_id]
    return f"{cell.planned.name} ({words})" if words else cell.planned.name
