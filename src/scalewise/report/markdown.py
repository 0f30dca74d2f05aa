"""Sections as a Markdown page. Record text is escaped in :func:`escape` alone."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from scalewise.report.sections import (
    Block,
    Line,
    Lines,
    Note,
    Picture,
    Section,
    Table,
    Verbatim,
    printable,
)

_MARKUP = re.compile(r"[\\`*<|$]|\](?=[(:\[])|~~|^(?:#|>|[-+](?=\s)|=+$|(?<=\d)[.)])")
"""What begins code, emphasis, HTML, a cell, mathematics, a link or a block."""


def render(title: str, sections: Iterable[Section], pictures: Collection[str] = ()) -> str:
    """The page; ``pictures`` are the file names that were drawn."""
    parts = [f"# {escape(title)}"]
    for section in sections:
        if section.title:
            parts.append(f"## {escape(section.title)}")
        parts += [part for block in section.blocks for part in _block(block, pictures)]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _MARKUP.sub(lambda found: f"\\{found.group()}", printable(text))


def _block(block: Block, pictures: Collection[str]) -> Iterator[str]:
    match block:
        case Picture():
            if block.name in pictures:
                yield f"![{escape(block.caption)}]({block.name})"
        case Note():
            yield block.text
        case Verbatim():
            yield from [escape(block.title)] if block.title else []
            yield _fenced(block.text)
        case Table() if block.where != "screen":
            yield from [f"{escape(block.title)}:"] if block.title else []
            yield grid(block)
            yield from [block.note] if block.note else []
        case Lines() if block.where != "screen":
            yield from _lines(block)


def _lines(block: Lines) -> Iterator[str]:
    if block.tone == "list":
        yield "\n".join(f"- {_line(line)}" for line in block.lines)
    elif block.tone == "answer":
        yield " ".join(map(_line, block.lines))
    elif block.tone == "alarm":
        yield from (f"**{_line(line)}.**" for line in block.lines)
    else:
        yield from map(_line, block.lines)


def _line(line: Line) -> str:
    lead = f"**{escape(line.subject)}: {escape(line.verdict)}.** " if line.verdict else ""
    return lead + escape(line.text)


def grid(table: Table) -> str:
    """A table, its figures aligned to the right."""
    head = [column.title for column in table.columns]
    rule = "|".join("---:" if column.align == "right" else "---" for column in table.columns)
    rows = [f"| {' | '.join(map(escape, row))} |" for row in (head, *table.cells)]
    return "\n".join([rows[0], f"|{rule}|", *rows[1:]])


def _fenced(text: str) -> str:
    """A fence longer than any in the text, so that no line of it ends the block."""
    longest = max((len(ticks) for ticks in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}text", *map(printable, text.split("\n")), fence])
