"""``comprehensive_summary.csv``, ``summary_table.tex`` and ``performance_report.txt``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from scalewise.analysis.figures import MISSING, estimate, ratio
from scalewise.analysis.remedies import REMEDIES
from scalewise.analysis.summary import Analysis
from scalewise.report import doubts, export, faults, findings
from scalewise.report.study.selection import batch
from scalewise.report.table import Table

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "±": r"$\pm$",
}  # fmt: skip
_WIDTH = 96


def texts(analysis: Analysis) -> Iterator[tuple[str, str]]:
    """File name and content."""
    yield "comprehensive_summary.csv", export.as_csv(analysis)
    yield "summary_table.tex", latex(summary(analysis))
    yield "performance_report.txt", performance_report(analysis)


def summary(analysis: Analysis) -> Table:
    """A row a configuration, as a paper would show it."""
    rows = []
    for config in analysis.measured:
        pair = analysis.pair(config)
        rows.append(
            (
                config.name("dataset") or "-",
                config.label,
                str(batch(config) or "-"),
                estimate(config.estimate("samples_per_s")),
                ratio(pair.speedup) if pair else MISSING,
                ratio(pair.efficiency) if pair else MISSING,
                pair.judgement.verdict if pair else "-",
            )
        )
    headers = (
        "dataset", "configuration", "batch", "samples/s", "speedup", "efficiency", "verdict",
    )  # fmt: skip
    return Table(headers, tuple(rows), frozenset({2, 3, 4, 5}))


def latex(table: Table) -> str:
    """A ``tabular`` that needs no package. Put it into a ``table`` with ``\\input``."""
    columns = "".join("r" if i in table.numeric else "l" for i in range(len(table.headers)))
    lines = [f"\\begin{{tabular}}{{{columns}}}", "\\hline"]
    lines.append(" & ".join(map(escape, table.headers)) + r" \\")
    lines.append("\\hline")
    lines += [" & ".join(map(escape, row)) + r" \\" for row in table.rows]
    return "\n".join([*lines, "\\hline", "\\end{tabular}", ""])


def escape(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(_LATEX.get(character, character) for character in text)


def performance_report(analysis: Analysis) -> str:
    """What limits each configuration, with its evidence, its test, and what follows from it."""
    lines = ["PERFORMANCE REPORT", "", f"command: {findings.command(analysis) or 'unknown'}"]
    lines += [findings.counts(analysis), ""]
    lines += _section("Answers", [f"{n}: {v}. {why}" for n, v, why in findings.answers(analysis)])
    lines += ["Diagnosis, and what follows from it", "-" * 35, ""]
    for config in analysis.measured:
        lines.append(config.label)
        found = analysis.diagnoses[config.config_id]
        if not found:
            lines += _wrapped("no limit was found in what was measured", "  ")
        for diagnosis in found:
            lines += _wrapped(str(diagnosis), "  ")
            lines += _wrapped(f"test: {diagnosis.refutation}", "    ")
            lines += _wrapped(f"try: {REMEDIES[diagnosis.limit]}", "    ")
        lines.append("")
    lines += _section("Faults found", faults.lines(analysis))
    lines += _section("Doubts", doubts.warnings(analysis))
    return "\n".join(lines).rstrip() + "\n"


def _section(title: str, entries: list[str]) -> list[str]:
    if not entries:
        return []
    lines = [title, "-" * len(title), ""]
    for entry in entries:
        lines += _wrapped(entry, "")
    return [*lines, ""]


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ")
