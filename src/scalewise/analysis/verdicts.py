"""Every verdict of a sweep: what its report says, and what ``repeats=auto`` stops for.

Both come from here, so that no comparison is called decided that the report calls inconclusive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scalewise.analysis.apart import timed_only
from scalewise.analysis.cells import Sweep
from scalewise.analysis.diagnose import diagnose
from scalewise.analysis.diagnosis import Diagnosis
from scalewise.analysis.doubts import doubted
from scalewise.analysis.monitored import read_scaling
from scalewise.analysis.rank_validity import Found
from scalewise.analysis.repeats import Repeats, assess
from scalewise.analysis.runs import Configuration, configurations
from scalewise.analysis.scaling import Pair, Refused, pair_all
from scalewise.analysis.verdict import MIN_EFFICIENCY


@dataclass(frozen=True)
class Verdicts:
    """The configurations of a sweep, and what they say about one another."""

    configurations: tuple[Configuration, ...]
    pairs: tuple[Pair, ...]
    refused: tuple[Refused, ...]
    diagnoses: Mapping[str, tuple[Diagnosis, ...]]
    """``config_id`` to what limits it, the main limit first."""
    invalid: Mapping[str, Found]
    """``config_id`` to why its figures mean nothing; sound configurations are absent."""
    repeats: tuple[Repeats, ...]
    """Who needs how many runs under ``repeats=auto``, and why."""


def reach_verdicts(sweep: Sweep, min_efficiency: float = MIN_EFFICIENCY) -> Verdicts:
    """Measure every finished cell, compare what may be compared, and doubt what has to be."""
    configs = read_scaling(configurations(sweep))
    timed = timed_only(configs)
    pairs, refused = pair_all(timed, min_efficiency)
    twins = {pair.multi.config_id: pair.single for pair in pairs}
    diagnoses = {c.config_id: diagnose(c, twins.get(c.config_id)) for c in configs}
    judged = tuple(doubted(pair, diagnoses) for pair in pairs)
    own = {c.config_id: found for c in timed if (found := c.invalid)}
    invalid = {p.multi.config_id: p.invalid for p in judged if p.invalid}
    invalid |= own
    return Verdicts(configs, judged, refused, diagnoses, invalid, assess(timed, judged))
