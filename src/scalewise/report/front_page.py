"""The first page of a report: the answer and what it rests on, in brief; the rest is linked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from scalewise.analysis import CAUSE_WORDS, Analysis, LossBudget, LossCause
from scalewise.config import conf_dir
from scalewise.host import plural
from scalewise.report.answer import answers
from scalewise.report.findings import WORTH_A_ROW, remark_lines
from scalewise.report.run_facts import head
from scalewise.report.scaling_tables import same_in_every_row, scaling
from scalewise.report.sections import (
    Block,
    Column,
    Lines,
    Note,
    Picture,
    Section,
    by_text,
    item,
    lines,
    markdown,
    section,
    table,
    words,
)

_LARGEST = 2
"""Causes of loss that every row shows, as the answer does."""
_MOST_CAUSES = 5
"""Causes of loss with a column of their own; the others share one."""
_MOST_LINES = 6
"""Lines of a list; details.md has the others."""
_METHOD = Path("docs", "method.md")
_MEANINGS = {
    "cell": "one training run",
    "speedup": "samples/s over those of one device",
    "efficiency": "samples/s of N devices over N times those of one",
    "imbalance": "ranks arrive at different times",
    "exposed transfer": "gradients still travel, nobody is late, and nothing is left to compute",
    "compute that did not shrink": "forward and backward beyond their share of one device's",
    "long steps": "what steps over three medians cost",
}
"""Words of the page, each in one clause."""


def front_page(analysis: Analysis, folder: Path) -> list[Section]:
    """The sections of report.md in ``folder``; a word is explained below its first use."""
    of_head = head(analysis)
    alarms = tuple(one for one in of_head.blocks if isinstance(one, Lines) and one.tone == "alarm")
    facts = tuple(one for one in of_head.blocks if one not in alarms)
    parts = (
        replace(of_head, blocks=alarms),
        _pictured(answers(analysis)),
        _unfinished(analysis),
        _scaling(analysis),
        _losses(analysis),
        _remarks(analysis),
        section("made", "Where the rest is", *facts, *_links(analysis, folder)),
    )
    return list(_explained([part for part in parts if part.blocks]))


def _pictured(answer: Section) -> Section:
    picture = Picture("answer.png", "Speedup of every run in the bands of its verdict, and cost")
    return replace(answer, blocks=(*answer.blocks, picture)) if answer.blocks else answer


def _explained(sections: Sequence[Section]) -> Iterator[Section]:
    left = dict(_MEANINGS)
    for one in sections:
        text = markdown("", [one])
        used = [word for word in left if re.search(rf"\b{word}", text, re.IGNORECASE)]
        said = " ".join(f"*{word.capitalize()}*: {left.pop(word)}." for word in used)
        yield replace(one, blocks=(*one.blocks, Note(said))) if said else one


def _unfinished(analysis: Analysis) -> Section:
    fates = [
        (cell.planned.name, f"{cell.state}: {cell.ending.message or 'no reason is recorded'}")
        for cell in analysis.unfinished
    ]
    return section("unfinished", "Without a result", *_first(by_text(fates), "without-a-result"))


def _remarks(analysis: Analysis) -> Section:
    grave = (one for one in remark_lines(analysis) if one.gravity != "note")
    return section("remarks", "Remarks", *_first([one.brief for one in grave], "remarks"))


def _first(texts: Sequence[str], anchor: str) -> Iterator[Block]:
    """As many lines as fit on the page, and where the others are."""
    if texts:
        more = len(texts) - _MOST_LINES
        yield lines(texts[:_MOST_LINES])
        yield Note(f"[{f'{more} more, and' if more > 0 else 'In'} detail](details.md#{anchor}).")


def _scaling(analysis: Analysis) -> Section:
    whole = scaling(analysis)
    if not whole.blocks:
        return whole
    found = whole.table("scaling")
    kept = (i for i, column in enumerate(found.columns) if column.key != "seed_label")
    note = "± and brackets are 95 % intervals over runs."
    pictures = (one for one in whole.blocks if isinstance(one, Picture))
    same = lines(same_in_every_row(analysis), "plain")
    return section("scaling", whole.title, same, replace(found.only(kept), note=note), *pictures)


def _losses(analysis: Analysis) -> Section:
    """From the ideal step to the measured one: a row a configuration, whose parts add up to it.

    Of a single device only where nothing is held against it: its parts are no losses.
    """
    known = [(c.label, found) for c in analysis.measured if (found := analysis.budget(c))]
    rows = [row for row in known if row[1].ideal_ms is not None] or known
    shares: dict[LossCause, float] = {}
    for loss in (loss for _, budget in rows for loss in budget.losses[:_LARGEST]):
        shares[loss.cause] = max(loss.share, shares.get(loss.cause, 0.0))
    shown = [c for c in sorted(shares, key=shares.__getitem__, reverse=True)
             if shares[c] >= WORTH_A_ROW][:_MOST_CAUSES]  # fmt: skip

    def lost_ms(row: tuple[str, LossBudget], cause: LossCause) -> float | None:
        return row[1].ms(cause)

    def rest_ms(row: tuple[str, LossBudget]) -> float:
        named = sum(row[1].ms(cause) or 0.0 for cause in shown)
        return row[1].measured_ms - row[1].first_ms - named

    columns = (
        words("configuration", "configuration", item(0)),
        Column("step", "step", "ms", lambda row: row[1].measured_ms),
        Column("ideal", "ideal", "ms", lambda row: row[1].first_ms),
        *(Column(c, CAUSE_WORDS[c], "ms", partial(lost_ms, cause=c)) for c in shown),
        Column("rest", "rest", "ms", rest_ms),
    )
    note = (
        "A row leads from the *ideal* step to the measured one. Ideal is the step of one device "
        "for the samples that each device has; without a baseline, the step's own work."
    )
    return section(
        "losses",
        "Where the time of a step goes",
        table("losses", columns, rows, note),
        Picture("step_anatomy.png", "Mean time of each part of a step"),
    )


def _links(analysis: Analysis, folder: Path) -> Iterator[Note]:
    count = len(remark_lines(analysis))
    said = f"[{count} {plural(count, 'remark')}](details.md#remarks)" if count else ""
    yield Note(
        "- `report.html`: pictures to filter, every step of every rank, the end of each log.\n"
        "- [details.md](details.md): every table, picture and definition."
        f"{f' Weigh first: {said}.' if said else ''}\n"
        "- [results.csv](results.csv): a row a configuration; [results.json](results.json): every "
        "run.\n"
        "- Logs: `logs/` in the folder of each cell.\n"
        f"- Method: {method_link(folder, conf_dir().parent)}: how every number is measured."
    )


def method_link(folder: Path, checkout: Path) -> str:
    """A link from ``folder`` to the method; only its name where they are not in one checkout.

    A page may travel: a path out of the checkout would lead nowhere, and name a person's folders.
    """
    page, here = checkout.resolve() / _METHOD, folder.resolve()
    if not page.is_file() or not here.is_relative_to(checkout.resolve()):
        return f"`{_METHOD}` of scalewise"
    return f"[{_METHOD}]({Path(os.path.relpath(page, here)).as_posix()})"
