"""What a sweep over values says as a whole: which row was fastest, and what losses do not say."""

from __future__ import annotations

from collections.abc import Sequence

from scalewise.analysis.asking import for_more_runs
from scalewise.analysis.figures import estimate
from scalewise.analysis.kinds import is_monitored
from scalewise.analysis.labels import told_apart
from scalewise.analysis.runs import Configuration
from scalewise.analysis.summary import Analysis

_FEWEST = 3
"""Rows of one workload below which the reader sees at once which is fastest."""
_NAMED = 3
"""Rows named in one line; further ones are counted."""


def fastest(analysis: Analysis) -> list[str]:
    """For each workload whose values were swept, the fastest row or those that may be it.

    A row is the fastest if the 95 % interval of its samples/s lies above those of all others. An
    invalid one is none of them.
    """
    lines = []
    for rows in _workloads(analysis):
        timed = [row for row in rows if row.estimate("samples_per_s") is not None]
        if len(timed) >= _FEWEST and len({told_apart(row.label) for row in timed}) > 1:
            sound = [row for row in timed if row.config_id not in analysis.invalid]
            lines += [_fastest_of(sound)] if len(sound) > 1 else []
    return lines


def unequal_samples(analysis: Analysis) -> list[str]:
    """For each workload whose losses were reached after unequal numbers of samples, a doubt."""
    lines = []
    for rows in _workloads(analysis):
        losses = [run.loss for row in rows for run in row.runs if run.loss]
        seen = [loss.samples[-1] for loss in losses]
        if len(rows) > 1 and len(set(seen)) > 1:
            lines.append(
                f"{_workload_name(rows[0])}: losses were reached at unequal samples "
                f"({min(seen):,} to {max(seen):,}): they do not rank the rows"
            )
    return lines


def _fastest_of(rows: Sequence[Configuration]) -> str:
    figures = {row.label: figure for row in rows if (figure := row.estimate("samples_per_s"))}
    ordered = sorted(figures, key=lambda label: -figures[label].value)
    first = figures[ordered[0]].interval
    if first is None:
        more = for_more_runs(is_monitored(rows[0].cells[0].config), 1)
        return (
            f"fastest: not decided: {ordered[0]} has the highest samples/s, of one run, which does "
            f"not tell how far others would lie from it: {more}"
        )
    rivals = []
    for label in ordered[1:]:
        other = figures[label].interval
        # One run tells no interval, so nobody is shown to lie above it.
        if other is None or other.high >= first.low:
            rivals.append(label)
    if not rivals:
        return f"fastest: {ordered[0]} with {estimate(figures[ordered[0]])} samples/s"
    return f"fastest: not decided between {_listed([ordered[0], *rivals])}"


def _listed(names: Sequence[str]) -> str:
    shown, more = names[:_NAMED], len(names) - _NAMED
    if more > 0:
        return f"{', '.join(shown)} and {more} more"
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def _workload_name(config: Configuration) -> str:
    return " on ".join(name for name in (config.name("model"), config.name("dataset")) if name)


def _workloads(analysis: Analysis) -> list[list[Configuration]]:
    """The measured rows by model and dataset."""
    found: dict[tuple[str | None, str | None], list[Configuration]] = {}
    for config in analysis.measured:
        found.setdefault((config.name("model"), config.name("dataset")), []).append(config)
    return list(found.values())
