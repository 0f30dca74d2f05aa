"""Builds a report: the analysis of a sweep, its sections, and the files written from them.

The first page has the answer and what it rests on, in brief; the rest is linked.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

from rich.console import Console

from scalewise.analysis import BEST, Analysis, Comparison, LossBudget, LossCause
from scalewise.config import ConfigError
from scalewise.host import plural
from scalewise.records import SweepFolder, write_atomically
from scalewise.report import console as console_module
from scalewise.report import export, page
from scalewise.report.answer import answers, in_detail
from scalewise.report.device_tables import memory_summary, of_devices
from scalewise.report.doctor_tables import examined
from scalewise.report.findings import WORTH_A_ROW, findings, remark_lines, searched
from scalewise.report.plots import report_plots, write_plots
from scalewise.report.run_facts import facts, head, trackers, unfinished
from scalewise.report.scaling_tables import scalings
from scalewise.report.sections import (
    NOTES,
    Block,
    Column,
    Lines,
    Note,
    Picture,
    Section,
    Table,
    by_text,
    lines,
    markdown,
    section,
    table,
    words,
)
from scalewise.report.study_tables import rehearsed, studies

_TITLE = "Do more devices pay?"
_SEARCHED, _SCORED = "Which is best by {}?", "How good is it by {}?"
_RESULTS = "results.json"
_ORDER = (
    "head", "answer", "rehearsed", "metrics", "sizes", "averages", "cost", "investment",
    "alternatives", "losses", "decisions", "repeats", "sent", "scaling", "resources", "anatomy",
    "communication", "profiles", "doctor", "mfu", "load_balance", "devices", "unfinished",
    "remarks", "trackers", "provenance",
)  # fmt: skip
"""Sections of details.md, by their keys."""
_SIDES = "Sweeps side by side"
_COMPARISON = "comparison.json"


@dataclass(frozen=True)
class ReportFiles:
    """What :func:`build` wrote."""

    folder: Path
    html: Path
    """Everything on one page, with pictures to filter."""
    plots: tuple[str, ...]
    problems: tuple[str, ...]
    """Plots that could not be written, one line each."""
    replaced: bool
    """Whether an earlier report was there."""


def report_folder(analysis: Analysis, out: Path | None) -> Path:
    """``out``, or the folder of the sweep's own report. Raises OSError where that is a link."""
    return out or own_folder(SweepFolder(analysis.sweep.home).report_path)


def own_folder(path: Path) -> Path:
    """``path``. Raises OSError where it is a link: others' files would be written over."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "found a link; allowed: a folder of the sweep's", str(path))
    return path


def report_sections(analysis: Analysis) -> list[Section]:
    """The sections of details.md, in their order, without empty ones."""
    found = (
        *facts(analysis), in_detail(analysis), *findings(analysis), *scalings(analysis),
        *studies(analysis), rehearsed(analysis), *of_devices(analysis), examined(analysis),
    )  # fmt: skip
    return sorted((one for one in found if one.blocks), key=lambda one: _ORDER.index(one.key))


def build(analysis: Analysis, out: Path | None = None) -> ReportFiles:
    """Write report.html, report.md, details.md, PNG plots, JSON and CSV into ``<sweep>/report/``.

    An earlier report is replaced. ``out`` is another folder for it. Raises :class:`ConfigError`
    where it has other files, and OSError where none can be written.
    """
    if out is not None:
        _check_report_folder(out, _RESULTS)
    folder = report_folder(analysis, out)
    folder.mkdir(parents=True, exist_ok=True)
    replaced = (folder / _RESULTS).exists()
    drawn, problems = write_plots(report_plots(analysis), folder)
    whole, objective = report_sections(analysis), searched(analysis)
    searched_for = _SEARCHED if len(analysis.measured) > 1 else _SCORED
    title = searched_for.format(objective.metric) if objective else _TITLE
    for name, text in {
        "report.md": markdown(title, front_page(analysis, whole), drawn),
        "details.md": markdown(f"{title} In detail", whole, drawn),
        "report.html": page.render(title, analysis, whole),
        "gpu_summary.txt": memory_summary(analysis),
        "gpu_timeline.csv": export.timeline_csv(analysis),
        _RESULTS: export.results_json(analysis),
        "results.csv": export.results_csv(analysis),
    }.items():
        if text:
            write_text(folder / name, text)
        else:  # of an earlier report, of devices that are no longer there
            (folder / name).unlink(missing_ok=True)
    return ReportFiles(folder, folder / "report.html", tuple(drawn), tuple(problems), replaced)


def build_comparison(
    sections: Sequence[Section],
    analyses: Sequence[Analysis],
    ratios: Sequence[Comparison],
    out: Path,
) -> Path:
    """Write comparison.md, .json and .csv into ``out``; returns the page.

    The last of ``sections``, what to take, comes first. An earlier comparison is replaced. Raises
    :class:`ConfigError` where ``out`` has other files, and OSError where none can be written.
    """
    _check_report_folder(out, _COMPARISON)
    # No sweep's own report needs these.
    from scalewise.report.comparison_tables import comparison_csv, comparison_json

    sections, page_path = [sections[-1], *sections[:-1]], out / "comparison.md"
    out.mkdir(parents=True, exist_ok=True)
    write_text(page_path, markdown(_SIDES, sections))
    write_text(out / "comparison.csv", comparison_csv(analyses))
    write_text(out / _COMPARISON, comparison_json(analyses, ratios))
    return page_path


def print_console(analysis: Analysis, console: Console, *, verbose: bool = False) -> None:
    """Print the answer to a terminal; ``verbose``: below tables, losses and remarks."""
    if verbose:
        console_module.show(report_sections(analysis), console)
    parts = (head, unfinished, answers, trackers)
    console_module.show_answer([part(analysis) for part in parts], console)


def _check_report_folder(folder: Path, kept: str) -> None:
    """Refuse a folder with other files; an earlier report is known by ``kept``."""
    if not folder.exists() or (folder / kept).exists():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        what = "which holds other files" if folder.is_dir() else "which is no folder"
        raise ConfigError(
            f"--out: found {folder}, {what}; allowed: a new or an empty folder, or one with an "
            f"earlier {kept}"
        )


def write_text(path: Path, text: str) -> None:
    """Write a text file. Bytes of names that are not UTF-8 are escaped."""
    write_atomically(path, text.encode("utf-8", errors="backslashreplace"))


_LARGEST = 2
"""Causes of loss that every row shows, as the answer does."""
_MOST_CAUSES = 5
"""Causes of loss with a column of their own; the others share one."""
_MOST_LINES = 6
"""Lines of a list; details.md has the others."""
_EMPTY = section("", "")


def front_page(analysis: Analysis, whole: Iterable[Section]) -> list[Section]:
    """The sections of report.md, of the ``whole``; a word is explained below its first use."""
    made = {one.key: one for one in whole}
    of_head, answer = made["head"], answers(analysis)
    picture = Picture("answer.png", "Speedup of every run in the bands of its verdict, and cost")
    alarms = tuple(one for one in of_head.blocks if isinstance(one, Lines) and one.tone == "alarm")
    facts = tuple(one for one in of_head.blocks if one not in alarms)
    found = [one.brief for one in remark_lines(analysis)]
    parts = (
        replace(of_head, blocks=alarms),
        replace(answer, blocks=(*answer.blocks, picture)) if answer.blocks else answer,
        _unfinished(analysis),
        _learned(analysis, made.get("metrics", _EMPTY)),
        _scaling(analysis, made.get("scaling", _EMPTY)),
        _losses(analysis),
        section("remarks", "Remarks", *_first(found, "remarks")),
        section("made", "Where the rest is", *facts, *_links(analysis)),
    )
    return list(_explained([part for part in parts if part.blocks]))


def _explained(sections: Sequence[Section]) -> Iterator[Section]:
    left = dict(NOTES["meanings"])
    for one in sections:
        text = markdown("", [one])
        used = [word for word in left if re.search(rf"\b{word}", text, re.IGNORECASE)]
        said = " ".join(f"*{word.capitalize()}*: {left.pop(word)}." for word in used)
        yield replace(one, blocks=(*one.blocks, Note(said))) if said else one


def _learned(analysis: Analysis, whole: Section) -> Section:
    """The last values of what modules logged, where numbers of devices are not the question."""
    last = (
        one.only(i for i, column in enumerate(one.columns) if not column.key.startswith(BEST))
        for one in (() if analysis.pairs else whole.blocks)
        if isinstance(one, Table)
    )
    return replace(whole, blocks=tuple(last))


def _unfinished(analysis: Analysis) -> Section:
    fates = [
        (cell.planned.name, f"{cell.state}: {cell.ending.message or 'no reason is recorded'}")
        for cell in analysis.unfinished
    ]
    return section("unfinished", "Without a result", *_first(by_text(fates), "without-a-result"))


def _first(texts: Sequence[str], anchor: str) -> Iterator[Block]:
    """As many lines as fit on the page, and where the others are."""
    if texts:
        more = len(texts[_MOST_LINES:])
        yield lines(texts[:_MOST_LINES])
        yield Note(f"[{f'{more} more, and' if more else 'In'} detail](details.md#{anchor}).")


def _scaling(analysis: Analysis, whole: Section) -> Section:
    """Its lines and pictures, and of its table what is not told elsewhere."""
    if not whole.blocks:
        return whole
    found = whole.table("scaling")
    title, gone = ("Speed", "verdict") if searched(analysis) else (whole.title, "seed_label")
    kept = (i for i, column in enumerate(found.columns) if column.key not in (gone, "seed_label"))
    note = "In brackets are 95 % intervals over runs."
    same = (replace(one, tone="plain") for one in whole.blocks if isinstance(one, Lines))
    pictures = (one for one in whole.blocks if isinstance(one, Picture))
    return section("scaling", title, *same, replace(found.only(kept), note=note), *pictures)


def _losses(analysis: Analysis) -> Section:
    """Of a single device only where nothing is held against it: its parts are no losses."""
    budgets = ((c.label, analysis.budgets.get(c.config_id)) for c in analysis.measured)
    known = [(label, found) for label, found in budgets if found]
    rows = [row for row in known if row[1].ideal_ms is not None] or known
    shares: dict[LossCause, float] = {}
    for loss in (loss for _, budget in rows for loss in budget.losses[:_LARGEST]):
        shares[loss.cause] = max(loss.share, shares.get(loss.cause, 0.0))
    shown = [c for c in sorted(shares, key=shares.__getitem__, reverse=True)
             if shares[c] >= WORTH_A_ROW][:_MOST_CAUSES]  # fmt: skip

    def rest_ms(row: tuple[str, LossBudget]) -> float:
        named = sum(row[1].ms(cause) or 0.0 for cause in shown)
        return row[1].measured_ms - row[1].first_ms - named

    # Of weak and of strong scaling they may differ.
    names = {c: dict.fromkeys(one.words() for _, b in rows if (one := b.loss(c))) for c in shown}

    def lost(cause: LossCause) -> Column:
        return Column(cause, " or ".join(names[cause]), "ms", lambda row: row[1].ms(cause))

    columns = (
        words("configuration", "configuration", itemgetter(0)),
        Column("step", "step", "ms", lambda row: row[1].measured_ms),
        Column("ideal", "ideal", "ms", lambda row: row[1].first_ms),
        *map(lost, shown),
        Column("rest", "rest", "ms", rest_ms),
    )
    return section(
        "losses",
        "Where the time of a step goes",
        table("losses", columns, rows, NOTES["front_losses"]),
        Picture("step_anatomy.png", "Mean time of each part of a step"),
    )


def _links(analysis: Analysis) -> Iterator[Note]:
    count = len(remark_lines(analysis))
    said = f"[{count} {plural(count, 'remark')}](details.md#remarks)" if count else ""
    yield Note(
        "- `report.html`: pictures to filter, every step of every rank, the end of each log.\n"
        "- [details.md](details.md): every table, picture and definition."
        f"{f' Weigh first: {said}.' if said else ''}\n"
        "- `results.csv`: a row a configuration; `results.json`: every run.\n"
        "- Logs: `logs/` in the folder of each cell.\n"
        "- Method: `docs/method.md` of scalewise: how every number is measured."
    )
