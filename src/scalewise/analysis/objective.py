"""Rows ranked by what they are to learn best: the objective of a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scalewise.analysis.comparability import grouped
from scalewise.analysis.configuration import Configuration
from scalewise.analysis.ranking import Ranking, Speed, rank
from scalewise.analysis.run import RUN_FIGURES
from scalewise.analysis.statistics import RatioEstimate, estimate_ratio
from scalewise.config import DEFAULT_OBJECTIVE, Mode, known_mode, of_validation


@dataclass(frozen=True)
class Objective:
    """A metric that modules logged, and which value is the better one."""

    metric: str
    mode: Mode
    was_typed: bool
    """Else it is the first score of validation that runs logged."""


def asked_in_vain(configs: Sequence[Configuration]) -> str | None:
    """An objective that was typed and that no run logged; None where there is none such."""
    typed = {config.setting("sweep.objective"): None for config in configs}
    known = {None, DEFAULT_OBJECTIVE, *RUN_FIGURES, *(k for one in configs for k in one.logged)}
    return next((key for key in typed if key not in known), None)


def objective_of(configs: Sequence[Configuration]) -> Objective | None:
    """What the rows of a sweep are to be ranked by; None where nobody says, or nothing has it."""
    if asked_in_vain(configs) is not None:
        return None
    logged = dict.fromkeys(key for config in configs for key in config.logged)
    for config in configs:
        key, mode = config.setting("sweep.objective"), config.setting("sweep.mode")
        if key != DEFAULT_OBJECTIVE and key in logged and (known := mode or known_mode(key)):
            return Objective(key, known, True)
    scores = ((key, known_mode(key)) for key in logged if of_validation(key))
    return next((Objective(key, mode, False) for key, mode in scores if mode is not None), None)


def rank_by(
    objective: Objective, configs: Sequence[Configuration]
) -> Iterator[Ranking[Configuration]]:
    """The rows of each data set that have the metric, two or more, the best first.

    Runs are samples by their seed, and are compared seed by seed where rows have the same ones.
    """
    having = [config for config in configs if config.estimate(objective.metric) is not None]
    for rows in grouped(having, lambda config: config.name("dataset")).values():
        if len(rows) > 1:
            yield rank(rows, _speed(objective))


def _speed(objective: Objective) -> Speed[Configuration]:
    sign = 1.0 if objective.mode == "max" else -1.0

    def value(config: Configuration) -> float:
        found = config.estimate(objective.metric)
        assert found is not None
        return sign * found.value

    def ratio(above: Configuration, below: Configuration, level: float) -> RatioEstimate:
        """How much better the first is; without an interval where a value is not positive."""
        sides = above.rounds(objective.metric), below.rounds(objective.metric)
        if objective.mode == "min":
            sides = sides[::-1]
        each = [[*(s.values() if isinstance(s, dict) else s)] for s in sides]
        if min(min(one) for one in each) <= 0:
            n = (len(each[0]), len(each[1]))
            return RatioEstimate(1.0, n, None, None)
        return estimate_ratio(*sides, level)

    return Speed(value, ratio)
