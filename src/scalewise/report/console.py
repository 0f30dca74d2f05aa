"""Sections and comparisons on a terminal. Record text is escaped in :func:`_text` alone."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from scalewise.records import DoctorReport
from scalewise.report.doctor_tables import doctor_sections
from scalewise.report.sections import Block, Line, Lines, Section, Table, Tone, printable

_BRIEF = ("head", "unfinished", "answer", "target", "trackers")
"""Sections of which a terminal shows what is told without ``-v``, the answer near the end."""

_ORDER = (
    "scaling", "resources", "sizes", "averages", "numbers_of_devices", "cost", "investment",
    "alternatives", "best", "doctor", "losses", "remarks",
)  # fmt: skip
"""Sections that ``-v`` shows above the answer: tables, then what to doubt."""
_TITLED = (
    "sizes", "averages", "investment", "alternatives", "target", "doctor_missing",
    "doctor_findings",
)  # fmt: skip

_PREFIX = {"doctor": "doctor: ", "losses": "time: ", "trackers": "tracker: "}

_COLOURS = {
    "invalid": "red", "not comparable": "red", "fault": "red", "pays": "green",
    "undecided": "yellow", "warning": "yellow",
    "does not pay": "magenta", "ceiling": "cyan", "note": "cyan",
}  # fmt: skip

_LEAST_FIRST = (
    "p_value", "batch", "seed_label", "timed_steps", "utilization_readings", "step_time_p99_ms",
    "memory_used_per_device_mib", "step_time_p50_ms", "runs", "efficiency", "efficiency_ratio",
    "energy_j_per_million_samples", "utilization_per_device_percent", "peak_memory_per_device_mib",
    "speedup", "speedup_ratio",
)  # fmt: skip
"""Columns that a narrow terminal shows in a second table, least missed first."""
_FEWEST_LABEL_COLUMNS = 12
"""The names of rows may fold at this width, if nothing else gives way."""


def show(sections: Iterable[Section], console: Console) -> None:
    found = {one.key: one for one in sections}
    for one in (found[key] for key in _ORDER if key in found):
        _show_section(one, console)


_WIDEST = 100
"""Columns beyond which lines are hard to read, and what a pipe gets."""
_TOLD: Mapping[str, tuple[Tone, ...]] = {
    "head": ("plain", "alarm"), "unfinished": ("place",), "trackers": ("list",),
}  # fmt: skip
_MOST_PLACES = 6
"""Lines on cells without a result; the report has all of them."""


def show_answer(sections: Iterable[Section], console: Console) -> None:
    """What a report comes to: its answers, and what failed."""
    found = {one.key: one for one in sections}
    width = min(console.width, _WIDEST)
    for one in (found[key] for key in _BRIEF if key in found):
        if one.key == "target":
            _show_section(one, console)
            continue
        for block in one.blocks:
            if isinstance(block, Lines) and block.tone in _TOLD.get(one.key, (block.tone,)):
                _show_block(block, one.key, width, console)


def _show_rows(block: Lines, key: str, width: int, console: Console) -> None:
    """Lines that are broken between clauses, further rows of one indented."""
    tones = {"faint": "dim", "alarm": "bold red", "place": "red"}
    most = _MOST_PLACES if key == "unfinished" else len(block.lines)
    laid_out = rows_of(block, width, _PREFIX.get(key, ""))
    for line, found in zip(block.lines[:most], laid_out, strict=False):
        whose = _whose(line)
        for k, row in enumerate(found):
            text = Text(row, style=tones.get(block.tone, ""))
            if line.verdict and k == 0:
                text.stylize("bold", 0, len(whose))
                ends = len(whose), len(whose) + len(line.verdict)
                text.stylize(_COLOURS.get(line.verdict, ""), *ends)
            console.print(text, soft_wrap=True)
    if left := block.lines[most:]:
        console.print(f"{len(left)} more lines on cells without a result are in the report.")


def rows_of(block: Lines, width: int, prefix: str = "") -> Iterator[list[str]]:
    """The rows of each line; ``prefix`` is before one without a verdict."""
    for i, line in enumerate(block.lines):
        lead = f"{_whose(line)}{line.verdict}. " if line.verdict else prefix
        indent = "  " if block.tone == "answer" and i else ""
        yield rows(indent + printable(lead + line.text), width)


def _whose(line: Line) -> str:
    return f"{line.subject}: " if line.subject else ""


_CLAUSE = re.compile(r"(?<=[.,;]) (?=\S)| (?=\()")
_PASTED = re.compile(r"^ *(Next|Run|log): |scalewise resume ")


def rows(text: str, width: int) -> list[str]:
    """``text`` broken between its clauses, or between words where a clause fits no row.

    What is to be pasted, and the path of a log, stays in one piece.
    """
    hanging = " " * max(2, len(text) - len(text.lstrip()))
    clauses = _CLAUSE.split(text)
    pasted = bool(_PASTED.search(text))
    if not pasted and max(map(len, clauses)) > width - len(hanging):
        return textwrap.wrap(
            text, width, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
        )
    found = clauses[:1]
    for clause in clauses[1:]:
        if len(found[-1]) + 1 + len(clause) <= width:
            found[-1] += f" {clause}"
        else:
            found.append(hanging + clause)
    return found


def show_doctor(report: DoctorReport, console: Console) -> None:
    for section in doctor_sections(report):
        _show_section(section, console)


def _show_section(section: Section, console: Console) -> None:
    if section.key in _TITLED and section.blocks:
        console.print(_text(section.title, "bold"))
    for block in section.blocks:
        _show_block(block, section.key, console.width, console)


def _show_block(
    block: Block, key: str, width: int, console: Console, style: str = "italic"
) -> None:
    if isinstance(block, Lines) and block.where != "page":
        _show_rows(block, key, width, console)
    elif isinstance(block, Table) and block.where != "page":
        if block.title:
            console.print(_text(block.title, style))
        for part in _fitted(block, console):
            console.print(part)


def _text(text: str, style: str = "") -> Text:
    """Text that a terminal shows as it is: neither rich's markup nor an escape sequence."""
    return Text(printable(text), style=style)


def _fitted(table: Table, console: Console) -> Iterator[RichTable]:
    """``table``, or as many tables with the same rows as the console's width asks for.

    Only names of rows are ever folded; a figure stands whole on its line.
    """
    left = list(range(1, len(table.columns)))
    while left:
        shown = _that_fit(table, left, console)
        yield _rich(table.only(shown), console)
        left = [i for i in left if i not in shown]


def _that_fit(table: Table, columns: list[int], console: Console) -> list[int]:
    """The columns to show first: the least missed give way, and then the last ones."""
    shown = list(columns)
    while len(shown) > 1 and _least_width(table.only(shown), console) > console.width:
        given = (i for key in _LEAST_FIRST for i in shown if table.columns[i].key == key)
        shown.remove(next(given, shown[-1]))
    return shown


def _least_width(table: Table, console: Console) -> int:
    """Columns it takes with the names of its rows folded as far as a third of the console."""
    unlimited = console.options.update(max_width=100_000)
    widest = Measurement.get(console, unlimited, _rich(table, None)).maximum
    names = max(len(word) for word in (table.columns[0].title, *(row[0] for row in table.cells)))
    return widest - max(0, names - max(_FEWEST_LABEL_COLUMNS, console.width // 3))


def _rich(table: Table, console: Console | None) -> RichTable:
    """Made for the width of ``console``; without one, as wide as it likes."""
    named = any(column.heading for column in table.columns)
    made = RichTable(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, show_header=named)
    for i, column in enumerate(table.columns):
        # The unit goes on a line of its own: headings are wider than what stands under them.
        words = printable(column.heading).replace(" per ", "\nper ").replace(": ", "\n")
        unit = f"\n({column.unit})" if column.unit else ""
        made.add_column(
            Text(words + unit),
            justify=column.align,
            no_wrap=console is None or (i > 0 and named),
            overflow="fold",
        )
    for row in table.cells:
        made.add_row(*map(_text, row))
    return made


def show_comparison(sections: Sequence[Section], console: Console) -> None:
    """Open sections; a ratio is a line in a pipe, all else is broken between clauses."""
    for i, one in enumerate(sections):
        if i:
            console.print()
        if sections[1:]:
            console.print(_text(one.title, "bold"))
        width = console.width if one.key == "ratio" else min(console.width, _WIDEST)
        for block in one.blocks:
            _show_block(block, one.key, width, console, "bold")
