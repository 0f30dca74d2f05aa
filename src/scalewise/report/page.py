"""report.html: a sweep on one page that needs neither a server nor a network.

It has the report's sections, and draws :mod:`scalewise.report.page_data` with plotly's
script, which stands in it once. Record text is escaped in :func:`_text` and :func:`_json` alone.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from importlib.resources import files
from typing import Any

from scalewise.analysis import Analysis
from scalewise.report.answer import answers
from scalewise.report.page_data import page_data
from scalewise.report.sections import Block, Line, Lines, Section, Table, Verbatim, printable

_STATIC = files("scalewise.report") / "static"


def render(title: str, analysis: Analysis, sections: Iterable[Section]) -> str:
    """The whole page; below its answer stand ``sections``, those of details.md."""
    said = "".join(map(_block, answers(analysis).blocks))
    made = [(one.key, _section(one)) for one in sections]
    # Why cells have no result is part of the answer, and all of it where none has one.
    lost = "".join(text for key, text in made if key == "unfinished")
    said += lost if analysis.measured else lost.replace("<details>", "<details open>", 1)
    parts = {
        "POLICY": (
            "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
            "img-src data: blob:"
        ),
        "COMMAND": _text(" ".join(analysis.sweep.command)),
        "ANSWER": said,
        "DETAILS": "".join(text for key, text in made if key != "unfinished"),
        "DATA": _json(page_data(analysis)),
        "PLOTLY": _packed((files("plotly") / "package_data/plotly.min.js").read_bytes()),
        "SCRIPT": _script(_static("page.js")),
    }
    return _filled("page.html", title, parts)


def render_open(title: str, sections: Iterable[Section]) -> str:
    """A page without pictures and scripts, whose sections stand open; the first is its answer."""
    answer, *rest = sections
    parts = {
        "POLICY": "default-src 'none'; style-src 'unsafe-inline'",
        "ANSWER": "".join(map(_block, answer.blocks)),
        "DETAILS": "".join(map(_open_section, rest)),
    }
    return _filled("open.html", title, parts)


def _filled(template: str, title: str, parts: Mapping[str, str]) -> str:
    """Filled in once and in pieces: no text that is filled in is looked through again."""
    known = {"TITLE": _text(title), "CSS": _static("page.css"), **parts}
    pieces = (_static("head.html") + _static(template)).split("@@")
    return "".join(known.get(piece, piece) for piece in pieces)


def _static(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


def _text(text: str) -> str:
    """Text that a browser shows as it is."""
    return escape(printable(text))


def _json(value: Any) -> str:
    """JSON that ends no script and begins no comment, of printable texts."""
    return json.dumps(_printable(value), allow_nan=False, separators=(",", ":")).replace(
        "<", "\\u003c"
    )


def _printable(value: Any) -> Any:
    match value:
        case str():
            return printable(value)
        case dict():
            return {printable(key): _printable(one) for key, one in value.items()}
        case list() | tuple() if value and not isinstance(value[0], float):
            return [_printable(one) for one in value]
        case _:
            return value


def _packed(source: bytes) -> str:
    """A script of 5 MB as 2 MB, which the page unpacks."""
    return base64.b64encode(gzip.compress(source, mtime=0)).decode()


def _script(source: str) -> str:
    """Refuses a script that would end its own element. Raises ValueError."""
    if "</script" in source.lower():
        raise ValueError("a script of the page holds the end of a script element")
    return source


def _section(section: Section) -> str:
    body = "".join(_block(block) for block in section.blocks)
    title = _text(section.title or "This sweep")
    return f"<details><summary>{title}</summary>{body}</details>\n" if body else ""


def _open_section(section: Section) -> str:
    body = "".join(map(_block, section.blocks))
    return f"<section><h2>{_text(section.title)}</h2>{body}</section>\n"


def _block(block: Block) -> str:
    match block:
        case Table() if block.where != "screen":
            return "".join(_table(block))
        case Lines() if block.where != "screen":
            tag, item = ("ul", "li") if block.tone == "list" else ("div", "p")
            rows = "".join(f"<{item}>{_line(line)}</{item}>" for line in block.lines)
            return f'<{tag} class="{block.tone}">{rows}</{tag}>'
        case Verbatim():
            title = f"<p>{_text(block.title)}</p>" if block.title else ""
            text = "\n".join(map(_text, block.text.split("\n")))
            return f"{title}<pre>{text}</pre>"
        case _:  # pictures are drawn anew, notes are Markdown
            return ""


def _line(line: Line) -> str:
    if not line.verdict:
        return _text(line.text)
    kind = line.verdict.replace(" ", "-")
    lead = f'<b>{_text(line.subject)}:</b> <span class="verdict {_text(kind)}">'
    return f"{lead}{_text(line.verdict)}</span> {_text(line.text)}"


def _table(table: Table) -> Iterator[str]:
    """A row carries its first cell, by which the page's filters find it."""
    yield '<div class="scroll"><table>'
    yield f"<caption>{_text(table.title)}</caption>" if table.title else ""
    yield "<thead><tr>"
    for column in table.columns:
        yield f'<th scope="col" class="{column.align}">{_text(column.title)}</th>'
    yield "</tr></thead><tbody>"
    for row in table.cells:
        yield f'<tr data-row="{_text(row[0])}">'
        for column, cell in zip(table.columns, row, strict=True):
            yield f'<td class="{column.align}">{_text(cell)}</td>'
        yield "</tr>"
    yield "</tbody></table></div>"
