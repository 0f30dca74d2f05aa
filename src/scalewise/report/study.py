"""The files of the published studies, by their names, from measured records.

``scalewise report FOLDER --study`` writes them into ``study`` beside the report. Figures are those
of the report itself; what was not measured is empty, never zero.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from scalewise.analysis import (
    FEWEST_BATCHES,
    Analysis,
    Pair,
    Row,
    average_speedups,
    measured_rows,
    p_words,
)
from scalewise.report import export, findings
from scalewise.report.answer import reasons
from scalewise.report.builder import Source, analysis_of, own_folder, report_folder, write_text
from scalewise.report.findings import remarks
from scalewise.report.plots import write_plots
from scalewise.report.sections import (
    Column,
    Note,
    Read,
    Section,
    Table,
    figure_columns,
    lines,
    markdown,
    printable,
    section,
    table,
    words,
)
from scalewise.report.study_plots import by_name, file_part, study_plots
from scalewise.report.study_tables import average_line, studies, tables_of

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "±": r"$\pm$",
}  # fmt: skip

_WIDTH = 96

_COMPARISON_NOTE = (
    "Global samples/s, mean over runs with 95 % intervals. Recommendation is the published "
    "rule (speedup of 1.1 or more beneficial, 0.95 or more marginal, else single), which "
    "looks at neither the number of devices nor the doubt; the verdict needs its whole "
    "interval and an efficiency of at least 0.5. *p* is of the two-sided t test of pairs that the "
    "speedup is 1."
)


def build_study(
    sweep: Source,
    report_to: Path | None = None,
    *,
    warmup_epochs: int = 1,
    datasets: Sequence[str] = (),
) -> tuple[list[Path], list[str]]:
    """Write every file that the sweep's records can fill.

    Returns their paths, in ``study`` of ``report_to`` (by default the sweep's report), and a line
    for each plot that could not be written. The first
    ``warmup_epochs`` are in no epoch time; no ``datasets`` are all of them. Raises
    :class:`~scalewise.records.RecordError` where there is no cell at all, and ValueError where
    ``datasets`` has one that the sweep does not.
    """
    analysis = _select(analysis_of(sweep), datasets)
    folder = own_folder(report_folder(analysis, report_to) / "study")
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.iterdir():
        # All of it is ours: a file of an earlier study would show what is no longer there.
        stale.unlink()
    written = []
    tables = ((f"{one.key}.csv", export.table_csv(one)) for one in tables_of(studies(analysis)))
    columns, rows = figure_columns("summary"), measured_rows(analysis)
    summary = table("summary", columns, rows, is_whole=True)
    for name, text in (
        *_benchmarks(analysis),
        ("comprehensive_summary.csv", export.results_csv(analysis, warmup_epochs)),
        ("summary_table.tex", _latex(summary)),
        ("performance_report.txt", _performance_report(analysis)),
        *tables,
    ):
        write_text(folder / name, text)
        written.append(name)
    drawn, problems = write_plots(study_plots(analysis, warmup_epochs), folder)
    return [folder / name for name in (*written, *drawn)], problems


def _select(analysis: Analysis, datasets: Sequence[str]) -> Analysis:
    if not datasets:
        return analysis
    known = sorted({name for c in analysis.configurations if (name := c.name("dataset"))})
    if unknown := [name for name in datasets if name not in known]:
        allowed = ", ".join(known) or "none ran"
        raise ValueError(f"--datasets: found {unknown[0]!r}; allowed: {allowed}")
    return replace(
        analysis,
        configurations=tuple(c for c in analysis.configurations if c.name("dataset") in datasets),
        pairs=tuple(p for p in analysis.pairs if p.multi.name("dataset") in datasets),
        refused=tuple(r for r in analysis.refused if r.multi.name("dataset") in datasets),
    )


def _benchmarks(analysis: Analysis) -> Iterator[tuple[str, str]]:
    """Every run of a model as in ``results.json``, and one device against several in Markdown."""
    for model, configs in by_name(analysis, "model").items():
        for mode in ("single", "multi"):
            side = [config for config in configs if (config.devices == 1) == (mode == "single")]
            if side:
                results = [export.configuration_as_plain(Row(analysis, one)) for one in side]
                plain = {"model": model, "mode": mode, "results": results}
                text = json.dumps(plain, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
                yield f"benchmark_{file_part(model)}_{mode}_gpu.json", text
        pairs = [p for p in analysis.pairs if p.multi.name("model") == model]
        if pairs:
            page = markdown(f"{model}: one device against several", _comparison(pairs))
            yield f"comparison_report_{file_part(model)}.md", page


def _comparison(pairs: Sequence[Pair]) -> list[Section]:
    """One device against several, batch by batch, and what follows on average."""

    def rate(side: str) -> Read:
        return lambda pair: getattr(pair, side).estimate("global_samples_per_s")

    columns = (
        words("configuration", "configuration", lambda pair: pair.multi.label),
        words("dataset", "dataset", lambda pair: pair.multi.name("dataset")),
        Column("batch", "batch", "", lambda pair: pair.multi.global_batch),
        Column("single", "single", "", rate("single")),
        Column("multi", "multi", "", rate("multi")),
        Column("speedup", "speedup", "", lambda pair: pair.speedup),
        Column("p_value", "p", "", lambda pair: pair.speedup.p_value, p_words),
        words("recommendation", "recommendation", lambda pair: pair.seed_label),
        words("verdict", "verdict", lambda pair: pair.verdict),
    )
    ordered = sorted(
        pairs, key=lambda p: (p.multi.name("dataset") or "", p.devices, p.multi.global_batch or 0)
    )
    compared = table("comparison", columns, ordered, is_whole=True)
    means = average_speedups(ordered)
    few = f"fewer than {FEWEST_BATCHES} batch sizes are like it, so there is no mean"
    alone = [
        f"{pair.multi.label}: {few}"
        for pair in ordered
        if not pair.invalid and all(pair not in one.pairs for one in means)
    ]
    return [
        Section("comparison", "", (Note(_COMPARISON_NOTE), compared)),
        section("conclusion", "Average and conclusion", lines([*map(average_line, means), *alone])),
    ]


def _latex(table: Table) -> str:
    """A ``tabular`` that needs no package. Put it into a ``table`` with ``\\input``."""
    align = "".join("r" if column.align == "right" else "l" for column in table.columns)
    head, *rows = [
        " & ".join(map(latex_escape, row)) + r" \\"
        for row in ([column.title for column in table.columns], *table.cells)
    ]
    rule = "\\hline"
    found = [f"\\begin{{tabular}}{{{align}}}", rule, head, rule, *rows, rule, "\\end{tabular}", ""]
    return "\n".join(found)


def latex_escape(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in printable(text))


def _performance_report(analysis: Analysis) -> str:
    """What limits each configuration, with its evidence, its test, and what follows from it."""
    answers = [f"{n}: {v}. {why}" for n, v, why in reasons(analysis)]
    text = ["PERFORMANCE REPORT", "", f"command: {findings.command(analysis) or 'unknown'}"]
    text += [findings.counts(analysis), "", *_part("Answers", answers)]
    text += _part("Where the time goes, and what to try", findings.losses(analysis).texts)
    text += _part("Remarks", remarks(analysis).texts)
    return "\n".join(map(printable, text)).rstrip() + "\n"


def _part(title: str, entries: Sequence[str]) -> list[str]:
    if not entries:
        return []
    wrapped = [
        line for entry in entries for line in textwrap.wrap(entry, _WIDTH, subsequent_indent="  ")
    ]
    return [title, "-" * len(title), "", *wrapped, ""]
