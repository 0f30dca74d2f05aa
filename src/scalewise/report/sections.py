"""A report as data: sections of lines, tables, notes and pictures; and laid out as Markdown.

Texts are plain: each renderer escapes them in one place, that of Markdown in :func:`escape`. Notes
alone are Markdown; they are constants of this room and hold nothing from a record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from scalewise.analysis import MISSING, Figure, Row, grouped, shown_on, written
from scalewise.host import escaped, plural
from scalewise.records import words_beside

Where = Literal["both", "page", "screen"]
"""Who shows a block: every renderer, files alone, or the terminal alone."""
Tone = Literal["list", "plain", "faint", "alarm", "place", "answer"]
"""``answer``: the lines of one configuration, its verdict first."""
Read = Callable[[Any], Any]

NOTES: Final = words_beside(__file__, dict[str, Any], "notes.toml")
"""What is explained below tables, by their keys, and in lines of our own."""


def explained(table: str, keys: Collection[str]) -> str:
    """The note of a table that may lack columns: what it says of those ``keys``."""
    return " ".join(text for key, text in NOTES[table].items() if key in keys)


@dataclass(frozen=True)
class Column:
    """One column: what it is called, where its values come from, and how they are written."""

    key: str
    heading: str
    unit: str
    read: Read
    """The value of a row's item; None where it was not measured."""
    format: Callable[[Any], str] = written
    align: Literal["left", "right"] = "right"

    @property
    def title(self) -> str:
        """The heading with its unit."""
        return f"{self.heading} ({self.unit})" if self.unit else self.heading

    def text(self, value: Any) -> str:
        """A cell; a dash for what was not measured."""
        return MISSING if value is None else self.format(value)


def words(key: str, heading: str, read: Read) -> Column:
    return Column(key, heading, "", read, str, "left")


def figure_columns(table: str) -> list[Column]:
    """The columns that a table takes from the table of figures, whose rows are its items."""
    return list(map(column_of, shown_on(table)))


def column_of(figure: Figure[Row]) -> Column:
    align: Literal["left", "right"] = "left" if figure.text is str else "right"
    return Column(figure.key, figure.heading, figure.unit, figure.of, figure.text, align)


@dataclass(frozen=True)
class Table:
    """Values by row and column; None is a value that was not measured."""

    key: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    note: str = ""
    """Markdown below the table."""
    where: Where = "both"
    title: str = ""
    is_whole: bool = False
    """Whether it keeps columns without a value."""

    @property
    def cells(self) -> list[list[str]]:
        return [
            [column.text(value) for column, value in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]

    def only(self, positions: Iterable[int]) -> Table:
        """The same with the first column, which names the rows, and these."""
        kept = sorted({0, *positions})
        rows = tuple(tuple(row[i] for i in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[i] for i in kept), rows=rows)


def table(
    key: str, columns: Sequence[Column], items: Iterable[Any], note: str = "", **more: Any
) -> Table:
    """Without the columns in which every value is missing."""
    rows = tuple(tuple(column.read(one) for column in columns) for one in items)
    made = Table(key, tuple(columns), rows, note, **more)
    known = [i for i in range(len(columns)) if any(row[i] is not None for row in rows)]
    return made.only(known) if rows and not made.is_whole else made


@dataclass(frozen=True)
class Line:
    """One line; an answer also has whose it is and its verdict."""

    text: str
    subject: str = ""
    verdict: str = ""
    more: str = ""
    """Key of the section that has all of it: on a page, the line leads there."""


@dataclass(frozen=True)
class Lines:
    """Lines of one tone."""

    lines: tuple[Line, ...]
    tone: Tone = "list"
    where: Where = "both"


def lines(texts: Iterable[str | Line], tone: Tone = "list", where: Where = "both") -> Lines:
    return Lines(tuple(one if isinstance(one, Line) else Line(one) for one in texts), tone, where)


@dataclass(frozen=True)
class Note:
    """Markdown of our own, for files."""

    text: str


@dataclass(frozen=True)
class Picture:
    """A plot by its file name; renderers leave out one that was not drawn."""

    name: str
    caption: str


@dataclass(frozen=True)
class Verbatim:
    """Text that is shown letter by letter, for files."""

    text: str
    title: str = ""


Block = Lines | Table | Note | Picture | Verbatim


@dataclass(frozen=True)
class Section:
    """One subject of a report."""

    key: str
    title: str
    blocks: tuple[Block, ...]

    @property
    def texts(self) -> list[str]:
        return [o.text for block in self.blocks if isinstance(block, Lines) for o in block.lines]

    def table(self, key: str) -> Table:
        """One of its tables. Raises KeyError where it is not shown."""
        return {one.key: one for one in self.blocks if isinstance(one, Table)}[key]


def section(key: str, title: str, *blocks: Block) -> Section:
    """A section without its empty blocks; it has none where only notes and pictures are left."""
    filled = tuple(block for block in blocks if _is_filled(block))
    if all(isinstance(block, Note | Picture) for block in filled):
        filled = ()
    return Section(key, title, filled)


def _is_filled(block: Block) -> bool:
    match block:
        case Table(rows=held) | Lines(lines=held) | Picture(held) | Note(held) | Verbatim(held):
            return bool(held)


def by_text(found: Iterable[tuple[str, str]], noun: str = "cell") -> list[str]:
    """One line for each text, with the names of those of which it is true."""
    said = []
    for text, alike in grouped(found, lambda one: one[1]).items():
        names = list(dict.fromkeys(name for name, _ in alike))
        more = len(names[2:])
        others = f" and {more} more {plural(more, noun)}" if more else ""
        said.append(f"{', '.join(names[:2])}{others}: {text}")
    return said


def printable(text: str) -> str:
    """One line without control characters: an escape sequence is shown, not obeyed."""
    return escaped(re.sub(r"[\n\t\r]", " ", text))


def cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


_MARKUP = re.compile(r"[\\`*<|$]|\](?=[(:\[])|~~|^(?:#|>|[-+](?=\s)|=+$|(?<=\d)[.)])")
"""What begins code, emphasis, HTML, a cell, mathematics, a link or a block."""


def markdown(title: str, sections: Iterable[Section], pictures: Collection[str] = ()) -> str:
    """A page of Markdown; ``pictures`` are the file names that were drawn."""
    parts = [f"# {escape(title)}"]
    for section in sections:
        if section.title:
            parts.append(f"## {escape(section.title)}")
        parts += [part for block in section.blocks for part in _in_markdown(block, pictures)]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _MARKUP.sub(lambda found: f"\\{found.group()}", printable(text))


def _in_markdown(block: Block, pictures: Collection[str]) -> Iterator[str]:
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
    fence = "`" * (1 + max(2, *map(len, re.findall(r"`+", text)), 0))
    return "\n".join([f"{fence}text", *map(printable, text.split("\n")), fence])
