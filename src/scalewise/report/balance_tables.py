"""Load balance: how far apart the ranks arrive, run by run, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from scalewise.analysis import (
    Analysis,
    Configuration,
    LoadBalance,
    Run,
    estimate,
    number,
    what_says_nothing,
)
from scalewise.records import GRADES, advice, cv_text, grade
from scalewise.report.scaling_tables import counted, of
from scalewise.report.sections import (
    NAME,
    Column,
    Read,
    Section,
    Table,
    lines,
    section,
    table,
    words,
)

_MOST_RUNS = 40
"""Runs with a row of their own."""

_GRADES_NOTE = (
    "*Grade* is of the mean over runs ("
    + ", ".join(f"{name} below {below:g} %" for name, below in GRADES.items() if below < math.inf)
    + ", else poor). The slowest rank, and how far it is behind, are of the worst run. "
)


def load_balance(analysis: Analysis) -> Section:
    """The means, then every run in the order in which they began, then what to do."""
    more = len(_balanced_runs(analysis)) - _MOST_RUNS
    nothing = what_says_nothing(on_cpu=all(c.is_cpu for c in analysis.measured))
    return section(
        "load_balance",
        "Load balance",
        _balance_table(analysis, _GRADES_NOTE + nothing),
        _runs_table(analysis),
        lines([f"{more} more runs are in results.json."] if more > 0 else (), "plain"),
        lines(_advice(analysis)),
    )


def _balance_table(analysis: Analysis, note: str) -> Table:
    """CV across ranks of arrival, and beside it of memory, utilisation and power.

    The first column and its grade are of the mean over runs; the rank and how far it is behind
    are of the worst run, whose own CV stands beside them.
    """
    cpu = all(c.is_cpu for c in analysis.measured)

    def graded(config: Configuration) -> str | None:
        arrival = config.estimate("arrival_cv_percent")
        return grade(arrival.value) if arrival else None

    def worst(figure: str) -> Read:
        return lambda config: getattr(_worst_balance(config), figure)

    columns = (
        NAME,
        Column("arrival_cv", "arrival CV", "%", of("arrival_cv_percent")),
        words("grade", "grade", graded),
        Column("worst_cv", "worst run", "%", worst("cv_percent"), cv_text),
        Column("slowest_rank", "its slowest rank", "", worst("slowest_rank")),
        Column("behind_ms", "behind", "ms", worst("behind_ms")),
        Column("memory_cv", "memory CV", "%", of("memory_cv_percent")),
        Column("utilization_cv", f"{'CPU time' if cpu else 'utilisation'} CV", "%, n readings",
               lambda c: counted(c, "utilization_cv_percent", estimate)),
        Column("power_cv", "power CV", "%", of("power_cv_percent")),
    )  # fmt: skip
    balanced = [config for config in analysis.measured if _worst_balance(config)]
    return table("balance", columns, balanced, note)


def _worst_balance(config: Configuration) -> LoadBalance | None:
    """That of the run whose ranks were furthest apart."""
    found = [run.balance for run in config.runs if run.balance]
    return max(found, key=lambda b: b.cv_percent, default=None)


def _runs_table(analysis: Analysis) -> Table:
    """One row a run on several devices, in the order in which the runs began."""

    def share(row: BalancedRun) -> float | None:
        found = row[2].behind_share
        return None if found is None else 100 * found

    def stretch(row: BalancedRun) -> str | None:
        worst = max(row[2].history, key=lambda w: w.cv_percent, default=None)
        if worst is None:
            return None
        return f"{cv_text(worst.cv_percent)}, steps {worst.first_step} to {worst.last_step}"

    def activity(row: BalancedRun) -> str | None:
        cv, usage = row[1].value("sm_activity_cv_percent"), row[1].usage
        readings = usage.activity_readings if usage else 0
        return None if cv is None else f"{number(cv)} (n={readings})"

    columns = (
        words("run", "run", lambda row: f"{row[0].label}, repeat {row[1].cell.planned.repeat}"),
        Column("arrival_cv", "arrival CV", "%", lambda row: row[2].cv_percent, cv_text),
        words("grade", "grade", lambda row: row[2].grade),
        Column("slowest_rank", "slowest rank", "", lambda row: row[2].slowest_rank),
        Column("behind_ms", "behind", "ms", lambda row: row[2].behind_ms),
        Column("behind_share", "share of the step", "%", share),
        Column("last_in", "last in", "% of steps", lambda row: 100 * row[2].slowest_share),
        Column("worst_stretch", "worst stretch", "CV %", stretch),
        Column("activity_cv", "SM activity CV", "%, n readings", activity),
        Column("samples_per_s", "samples/s", "global", lambda row: row[1].samples_per_s),
    )
    title = "Run by run, in the order in which they began"
    return table("balance_runs", columns, _balanced_runs(analysis)[:_MOST_RUNS], title=title)


BalancedRun = tuple[Configuration, Run, LoadBalance]


def _balanced_runs(analysis: Analysis) -> list[BalancedRun]:
    """Runs whose balance was measured, in the order in which they began."""
    found = [(c, run, run.balance) for c in analysis.measured for run in c.runs if run.balance]
    return sorted(found, key=lambda one: one[1].cell.result.started_at if one[1].cell.result else 0)


def _advice(analysis: Analysis) -> Iterator[str]:
    """What to do about each configuration; the rank that is named is that of its worst run.

    Ranks that launch in turns arrive as far apart as one that is slow: a grade alone accuses none.
    """
    for config in analysis.measured:
        worst, arrival = _worst_balance(config), config.estimate("arrival_cv_percent")
        if worst is not None and arrival is not None:
            graded = grade(arrival.value)
            said = advice(graded, worst.slowest_rank, on_cpu=config.is_cpu)
            budget = analysis.budgets.get(config.config_id)
            if graded in ("fair", "poor") and (budget is None or budget.late_rank is None):
                said = "no rank is slow by itself: see where the time goes"
            yield f"{config.label} ({graded}): {said}"
