"""What was rehearsed: apart from all that was measured, and beside it where it was."""

from __future__ import annotations

from collections.abc import Iterator

from scalewise.analysis import Analysis
from scalewise.report.sections import Column, Note, Section, section, table, words

_MISSES = (
    "Rehearsed: one rank of N ran on this host, and the others' part of each collective was "
    "emulated. Their lateness, a network's jitter and a full host's heat are missing."
)


def rehearsed(analysis: Analysis) -> Section:
    """One row a rehearsed configuration."""
    columns = (
        words("configuration", "configuration", lambda one: one.label),
        words("verdict", "verdict", lambda one: one.word),
        Column("speedup", "speedup (90 %)", "x", lambda one: one.speedup),
        words("reason", "why", lambda one: one.reason),
        words("measured", "measured as", lambda one: one.measured and one.measured.label),
        Column("step_error", "step, rehearsed over measured", "x", lambda one: one.step_error),
        words("source", "times of the link", lambda one: one.record.source),
    )
    rows = analysis.rehearsals
    return section(
        "rehearsed",
        "Rehearsed, not measured",
        table("rehearsed", columns, rows),
        Note(_MISSES if rows else ""),
    )


def in_brief(analysis: Analysis) -> Iterator[str]:
    """A line for each, with its score, and one on what all of them miss."""
    for one in analysis.rehearsals:
        yield str(one)
        if one.score:
            yield f"  {one.score}."
    if analysis.rehearsals:
        yield _MISSES
