"""Which part of a sweep a study shows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scalewise.analysis.runs import Configuration
from scalewise.analysis.summary import Analysis


@dataclass(frozen=True)
class StudySelection:
    """What the options of the command choose."""

    warmup_epochs: int = 1
    """First epochs that no epoch time is taken from."""
    datasets: tuple[str, ...] = ()
    """Names of data sets; none are all of them."""


def select(analysis: Analysis, wanted: StudySelection) -> Analysis:
    """The analysis of the chosen data sets alone. Raises ValueError for one that is not there."""
    if not wanted.datasets:
        return analysis
    known = sorted({name for c in analysis.configurations if (name := c.name("dataset"))})
    unknown = [name for name in wanted.datasets if name not in known]
    if unknown:
        raise ValueError(
            f"--datasets: found {unknown[0]!r}; allowed: {', '.join(known) or 'none ran'}"
        )

    def holds(config: Configuration) -> bool:
        return config.name("dataset") in wanted.datasets

    return replace(
        analysis,
        configurations=tuple(c for c in analysis.configurations if holds(c)),
        pairs=tuple(p for p in analysis.pairs if holds(p.multi)),
        refused=tuple(r for r in analysis.refused if holds(r.multi)),
    )


def by_name(analysis: Analysis, group: str) -> dict[str, list[Configuration]]:
    """Measured configurations by the name of their model or data set."""
    found: dict[str, list[Configuration]] = {}
    for config in analysis.measured:
        found.setdefault(config.name(group) or "unnamed", []).append(config)
    return found


def file_part(name: str) -> str:
    """A name as a part of a file's name."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)


def batch(config: Configuration) -> int | None:
    """Global samples a step."""
    result = config.runs[0].cell.result if config.runs else None
    return result.global_batch_size if result else None
