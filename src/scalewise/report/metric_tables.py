"""What was learned: every metric that modules logged, and rows ranked by the objective."""

from __future__ import annotations

from collections.abc import Iterator

from scalewise.analysis import (
    VERDICT_RUNS,
    Analysis,
    Configuration,
    Objective,
    Ranking,
    estimate,
    logged_figures,
    measured_rows,
    objective_of,
    rank_by,
)
from scalewise.host import plural
from scalewise.report.sections import (
    Column,
    Note,
    Section,
    column_of,
    lines,
    section,
    table,
    words,
)

_MOST_RANKED = 8
"""Rows that a terminal shows."""


def metrics(analysis: Analysis) -> Section:
    """The last and the best value of every logged metric, over seeds."""
    logged = list(map(column_of, logged_figures(analysis)))
    columns = [
        words("configuration", "configuration", lambda row: row.config.label),
        Column("seeds", "seeds", "", lambda row: row.config.seeds_learned or None),
        *logged,
        Column("global_samples_per_s", "samples/s", "global",
               lambda row: row.config.estimate("global_samples_per_s")),
    ]  # fmt: skip
    rows = measured_rows(analysis) if logged else []
    return section(
        "metrics",
        "What was learned",
        lines(ranked_in_brief(analysis)),
        table("metrics", columns, rows),
        Note("Means over seeds; repeats of one seed are one sample. *Best* is the mean of the best "
             "values of the runs, and not the value of the best run."),
    )  # fmt: skip


def rankings(analysis: Analysis) -> tuple[Objective, list[Ranking[Configuration]]] | None:
    """Rows ranked by the objective; None where it was not typed and devices are compared."""
    objective = objective_of(analysis.measured)
    if objective is None or (analysis.pairs and not objective.was_typed):
        return None
    sound = [config for config in analysis.measured if config.config_id not in analysis.invalid]
    found = list(rank_by(objective, sound))
    return (objective, found) if found else None


def searched(analysis: Analysis) -> Objective | None:
    """What a sweep that never asks for several devices is about, where it is typed or ranks."""
    objective = objective_of(analysis.measured)
    alone = all(config.devices == 1 for config in analysis.configurations)
    if objective is None or not alone or analysis.rehearsals:
        return None
    return objective if objective.was_typed or rankings(analysis) else None


def ranked_in_brief(analysis: Analysis) -> Iterator[str]:
    """The rows of a sweep by its objective, with their speed, and how sure the first place is."""
    ranked = rankings(analysis)
    for ranking in ranked[1] if ranked else ():
        assert ranked is not None
        objective = ranked[0]
        more = "more" if objective.mode == "max" else "less"
        yield f"By {objective.metric} ({more} is better):"
        for place, row in enumerate(ranking.rows[:_MOST_RANKED], start=1):
            rate = row.estimate("global_samples_per_s")
            speed = f", {estimate(rate)} samples/s" if rate else ""
            learned = estimate(row.estimate(objective.metric))
            known, asked = row.seeds_learned, len(row.seeds)
            some = f" ({known} of {asked} seeds)" if known < asked else ""
            yield f"  {place}. {row.label}: {learned}{some}{speed}."
        if len(ranking.rows) > _MOST_RANKED:
            yield f"  {len(ranking.rows) - _MOST_RANKED} more are in the report."
        yield _surely(objective, ranking)


def _surely(objective: Objective, ranking: Ranking[Configuration]) -> str:
    rivals = len(ranking.rivals)
    if not rivals:
        return f"{ranking.first.label} is the best."
    # Where as many were asked for, and some do not count, the same seeds again are no advice.
    seeds = min(max(len(one.seeds), one.samples(objective.metric)) for one in ranking.rows)
    first = f"{rivals} {plural(rivals, 'other')} may be as good as the first"
    return f"{first}: {'more seeds of each tell' if seeds >= VERDICT_RUNS else _FEW}."


_FEW = f"add seed={','.join(map(str, range(1, VERDICT_RUNS + 1)))}"
