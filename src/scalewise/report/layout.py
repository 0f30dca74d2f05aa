"""Pieces of a Markdown page: tables, sections and lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from scalewise.report.table import Table


def grid(table: Table) -> str:
    """A table, its numeric columns aligned to the right."""
    rule = ["---:" if i in table.numeric else "---" for i in range(len(table.headers))]
    rows = [table.headers, tuple(rule), *table.rows]
    return "\n".join(f"| {' | '.join(map(_escape, row))} |" for row in rows)


def section(title: str, lines: Iterable[str]) -> Iterator[str]:
    """A heading of the second level and what stands below it."""
    yield f"\n## {title}\n"
    yield from lines


def bullets(title: str, lines: Sequence[str]) -> Iterator[str]:
    """A section that is a list; nothing at all where the list is empty."""
    if lines:
        yield from section(title, [f"- {line}" for line in lines])


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
