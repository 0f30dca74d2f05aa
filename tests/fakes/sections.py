"""The sections of a report by their keys."""

from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from scalewise.analysis import Analysis, analyse, load_sweep
from scalewise.report import print_console, report_sections


def printed(sweep: Analysis | Path, width: int = 10_000, *, verbose: bool = True) -> str:
    """What a terminal shows."""
    analysis = sweep if isinstance(sweep, Analysis) else analyse(load_sweep(sweep))
    print_console(analysis, Console(file=(file := StringIO()), width=width), verbose=verbose)
    return file.getvalue()


def section(sweep: Analysis | Path, key: str) -> Any:
    """One section; None where the report has none."""
    analysis = sweep if isinstance(sweep, Analysis) else analyse(load_sweep(sweep))
    return {one.key: one for one in report_sections(analysis)}.get(key)


def lines_of(sweep: Analysis | Path, key: str) -> list[str]:
    """The lines of a section."""
    found = section(sweep, key)
    return found.texts if found else []


def values(sweep: Analysis | Path, key: str, table: str, column: str) -> list[Any]:
    """The figures of a column. Raises ValueError where the table does not show it."""
    found = section(sweep, key).table(table)
    return [row[[one.key for one in found.columns].index(column)] for row in found.rows]


def cells(sweep: Analysis | Path, key: str, table: str) -> list[dict[str, str]]:
    """The texts of a table's rows by column."""
    found = section(sweep, key).table(table)
    keys = [column.key for column in found.columns]
    return [dict(zip(keys, row, strict=True)) for row in found.cells]


def answers(sweep: Analysis | Path) -> dict[str, tuple[str, str]]:
    """Configuration to its verdict and its reason."""
    lines = [line for block in section(sweep, "answer").blocks for line in block.lines]
    return {line.subject: (line.verdict, line.text) for line in lines if line.verdict}
