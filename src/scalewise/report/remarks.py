"""Remarks as lines: what is alike of several runs or configurations is said once."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from scalewise.analysis import Analysis, Gravity, Remark, grouped, listed
from scalewise.report.sections import Note, Section, lines, section

_MOST_NAMED = 2
"""Configurations that are named where a remark holds of several."""


@dataclass(frozen=True)
class RemarkLine:
    """One remark, with all configurations that it holds of."""

    first: Remark
    text: str
    names: str
    """Empty for the whole sweep."""
    about: frozenset[str]
    """``config_id`` of each."""

    @property
    def gravity(self) -> Gravity:
        return self.first.gravity

    @property
    def brief(self) -> str:
        """For a terminal: ``large ddp x2: 3 of 60 steps trained nothing``."""
        return f"{self.names}: {self.first.brief}" if self.names else self.first.brief

    def __str__(self) -> str:
        named = f"{self.names}: " if self.names else ""
        return f"{self.gravity}: {named}{self.text}"


@functools.lru_cache(maxsize=1)
def remark_lines(analysis: Analysis) -> tuple[RemarkLine, ...]:
    """Every remark, the gravest first; of several runs the first, and in how many it holds."""
    configs = {config.config_id: config for config in analysis.configurations}
    found: dict[tuple[str, str], list[Remark]] = {}
    for same in grouped(analysis.remarks, lambda one: (one.code, one.about, one.brief)).values():
        first, runs = same[0], {one.run for one in same if one.run}
        cells = configs[first.about].cells if first.about else ()
        often = f" (in {len(runs)} of {len(cells)} runs)" if runs and len(cells) > 1 else ""
        found.setdefault((first.code, first.text + often), []).append(first)
    return tuple(
        RemarkLine(
            alike[0],
            text,
            listed([configs[one.about].label for one in alike if one.about], _MOST_NAMED),
            frozenset(one.about for one in alike if one.about),
        )
        for (_, text), alike in found.items()
    )


def remarks(analysis: Analysis) -> Section:
    """All that must be known of the figures, one line each."""
    return section(
        "remarks",
        "Remarks",
        lines(map(str, remark_lines(analysis))),
        Note("*Invalid* figures mean nothing, an *undecided* verdict needs a quiet host, a *doubt* "
             "is weighed with the figure, a *note* says what it is. Where processes, memory and "
             "stalls have no remark, nothing was found."),
    )  # fmt: skip
