"""Sections and comparisons on a terminal, and the answer in a dozen lines to paste into an issue.

Record text is escaped in :func:`_text` and :func:`_ascii` alone.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from scalewise.analysis import Analysis
from scalewise.host import plural, rows
from scalewise.records import DoctorReport, Provenance
from scalewise.report.answer import answers
from scalewise.report.doctor_tables import doctor_sections
from scalewise.report.findings import command, counts
from scalewise.report.run_facts import labels, unfinished
from scalewise.report.sections import Block, Line, Lines, Section, Table, Tone, cut, printable

_ORDER = (
    "scaling", "resources", "sizes", "averages", "cost", "investment", "alternatives", "doctor",
    "losses", "remarks",
)  # fmt: skip
"""Sections that ``-v`` shows above the answer: tables, then what to doubt."""
_TITLED = (
    "sizes", "averages", "investment", "alternatives", "doctor_missing", "doctor_findings",
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
    width = min(console.width, _WIDEST)
    for one in sections:
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
        more = f"{len(left)} more {plural(len(left), 'line')}"
        console.print(f"The report has {more} on cells without a result.")


def rows_of(block: Lines, width: int, prefix: str = "") -> Iterator[list[str]]:
    """The rows of each line; ``prefix`` is before one without a verdict."""
    for i, line in enumerate(block.lines):
        lead = f"{_whose(line)}{line.verdict}. " if line.verdict else prefix
        indent = "  " if block.tone == "answer" and i and not line.verdict else ""
        yield rows(indent + printable(lead + line.text), width)


def _whose(line: Line) -> str:
    return f"{line.subject}: " if line.subject else ""


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
    """As many tables with the same rows as the console's width asks for: no figure is folded."""
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
    made = RichTable(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, show_header=named)
    for i, column in enumerate(table.columns):
        # The unit goes on a line of its own: headings are wider than what stands under them.
        words = printable(column.heading).replace(" per ", "\nper ").replace(": ", "\n")
        made.add_column(
            Text(words + (f"\n({column.unit})" if column.unit else "")),
            justify=column.align,
            no_wrap=console is None
            or (i > 0 and named and all(len(row[i]) <= console.width // 2 for row in table.cells)),
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


_BOX_WIDTH, _BOX_HEIGHT = 80, 12
_FENCE = "```"
"""Keeps the lines as they are in an issue; elsewhere it is in nobody's way."""
_PACKAGES = ("scalewise", "torch", "pytorch-lightning")


def box(analysis: Analysis) -> list[str]:
    """What was run, what it comes to, and on what: what matters least is left out first."""
    below = list(_box_facts(analysis))
    said = _box_answer(analysis, _BOX_HEIGHT - len(below) - 3)
    told = [cut(_ascii(row), _BOX_WIDTH) for row in (command(analysis), *said, *below) if row]
    return [_FENCE, *told, _FENCE]


def _box_answer(analysis: Analysis, room: int) -> list[str]:
    """As many lines of the answer as there is room for, each whole, in their order."""
    found: list[tuple[int, list[str]]] = []
    """What is needed less has a higher number."""
    for block in (*answers(analysis).blocks, *unfinished(analysis).blocks):
        if isinstance(block, Lines) and block.where != "page":
            needs = [3] * len(block.lines)
            if block.tone == "answer":  # its first line is the verdict, and a doubt has ``more``
                needs = [0, *(1 if line.more else 2 for line in block.lines[1:])]
            found += zip(needs, rows_of(block, _BOX_WIDTH), strict=True)
    verdicts = sum(need == 0 for need, _ in found)
    if verdicts > room:
        found = [one for one in found if one[0] == 0][: room - 1]
        found.append((0, [f"{verdicts - len(found)} more verdicts are in the report."]))
    kept = []
    for place in sorted(range(len(found)), key=lambda i: found[i][0]):
        if len(found[place][1]) <= room:
            kept.append(place)
            room -= len(found[place][1])
    return [row for place in sorted(kept) for row in found[place][1]]


def _box_facts(analysis: Analysis) -> Iterator[str]:
    """A line each: what is missing, devices and host of the run on most of them, all versions."""
    yield from labels(analysis)
    if analysis.unfinished:
        yield f"{counts(analysis)}."
    known = [cell.provenance for cell in analysis.sweep.cells if cell.provenance is not None]
    if not known:
        yield "nothing is known of the host: no cell came as far as to start training"
        return
    most = max(known, key=lambda one: len(one.devices))
    devices = Counter(device.name for device in most.devices)
    links = sorted(set(most.topology.values()))
    yield "on " + ", ".join([*(f"{n} x {name}" for name, n in devices.items()), *links])
    hosts = sorted({one.host for one in known})
    cores = f"{most.usable_cores} {plural(most.usable_cores, 'core')}"
    yield f"host {', '.join(hosts)}, {cores}, {most.platform.partition('-with-')[0]}"
    for versions in (_of_packages, _of_the_host):
        yield ", ".join(dict.fromkeys(itertools.chain.from_iterable(map(versions, known))))


def _of_packages(known: Provenance) -> Iterator[str]:
    commit = known.code.get("commit")
    for name in _PACKAGES:
        if name in known.packages:
            version = known.packages[name]
            if name == "scalewise" and commit:  # which says more than the local part of a version
                version = f"{version.partition('+')[0]} ({commit[:9]})"
            yield f"{name} {version}"


def _of_the_host(known: Provenance) -> Iterator[str]:
    named = ("Python", known.python), ("driver", known.driver), ("CUDA", known.cuda)
    yield from (f"{name} {told}" for name, told in (*named, ("NCCL", known.nccl)) if told)


def _ascii(text: str) -> str:
    return printable(text).encode("ascii", errors="backslashreplace").decode()
