"""Load balance over time and over runs, against training speed, with advice for each grade."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from matplotlib.figure import Figure

from scalewise.analysis.balance import GRADES, LoadBalance, advice, cv_text, grade
from scalewise.analysis.figures import number
from scalewise.analysis.run import Run
from scalewise.analysis.runs import Configuration
from scalewise.analysis.summary import Analysis
from scalewise.report import style, tables
from scalewise.report.faults import UNEVEN
from scalewise.report.table import Table

NAME: Final = "balance_history.png"
_MOST_ROWS: Final = 40
_MOST_LINES: Final = 12


def runs_table(analysis: Analysis) -> Table:
    """One row a run on several devices, in the order in which the runs began."""
    headers = (
        "run", "arrival CV (%)", "grade", "slowest rank", "behind (ms)", "share of the step (%)",
        "last in (% of steps)", "worst stretch (CV %)", "SM activity CV (%, n readings)",
        "samples/s (global)",
    )  # fmt: skip
    rows = []
    for config, run, balance in balanced_runs(analysis)[:_MOST_ROWS]:
        worst = max(balance.history, key=lambda w: w.cv_percent, default=None)
        share = balance.behind_share
        rows.append(
            (
                f"{config.label}, repeat {run.cell.planned.repeat}",
                cv_text(balance.cv_percent),
                balance.grade,
                str(balance.slowest_rank),
                number(balance.behind_ms),
                number(None if share is None else 100 * share),
                number(100 * balance.slowest_share),
                "-"
                if worst is None
                else f"{cv_text(worst.cv_percent)}, steps {worst.first_step} to {worst.last_step}",
                tables.counted(
                    number(run.sm_activity_cv_percent),
                    run.usage.activity_readings if run.usage else 0,
                ),
                number(run.samples_per_s),
            )
        )
    return Table(headers, tuple(rows), frozenset({1, 3, 4, 5, 6, 7, 8, 9})).without_empty_columns()


def left_out(analysis: Analysis) -> int:
    """Runs for which the table has no room."""
    return max(0, len(balanced_runs(analysis)) - _MOST_ROWS)


def balanced_runs(analysis: Analysis) -> list[tuple[Configuration, Run, LoadBalance]]:
    """Runs whose balance was measured, in the order in which they began."""
    found = [(c, run, run.balance) for c in analysis.measured for run in c.runs if run.balance]
    return sorted(found, key=lambda each: _began(each[1]))


def advice_lines(analysis: Analysis) -> list[str]:
    """What to do about each configuration; the rank that is named is that of its worst run.

    Ranks that launch in turns arrive as far apart as one that is slow: a grade alone accuses none.
    """
    lines = []
    for config in analysis.measured:
        balances = [run.balance for run in config.runs if run.balance]
        arrival = config.estimate("arrival_cv_percent")
        if balances and arrival is not None:
            worst, graded = max(balances, key=lambda b: b.cv_percent), grade(arrival.value)
            limits = {found.limit for found in analysis.diagnoses.get(config.config_id, ())}
            said = advice(graded, worst.slowest_rank, on_cpu=config.is_cpu)
            if graded in ("fair", "poor") and not limits & UNEVEN:
                said = "the diagnosis names no rank: see what it does name"
            lines.append(f"{config.label} ({graded}): {said}")
    return lines


def draw(analysis: Analysis) -> Figure | None:
    """Left: the CV over each run. Right: each run's CV against its speed.

    Speed is over the fastest run of its configuration, so that unlike models share an axis.
    """
    runs = balanced_runs(analysis)
    if not runs:
        return None
    made = style.figure(11.0, 4.2)
    left, right = made.subplots(1, 2)
    for i, (config, run, balance) in enumerate(runs[:_MOST_LINES]):
        at = [(w.first_step + w.last_step) / 2 for w in balance.history]
        left.plot(at, [w.cv_percent for w in balance.history], color=style.colour(i),
                  marker=style.marker(i), ms=3, lw=1.2,
                  label=f"{config.label}, repeat {run.cell.planned.repeat}")  # fmt: skip
    for i, (config, points) in enumerate(_against_speed(runs)):
        right.plot([cv for cv, _ in points], [speed for _, speed in points], ls="",
                   color=style.colour(i), marker=style.marker(i), ms=6,
                   label=config.label)  # fmt: skip
    left.set_ylim(0, max(left.get_ylim()[1] * 1.1, 6.0))
    right.set_xlim(0, max(right.get_xlim()[1] * 1.1, 6.0))
    for edge in GRADES.values():
        if edge < left.get_ylim()[1]:
            left.axhline(edge, ls=":", color=style.GREY, lw=1)
        if edge < right.get_xlim()[1]:
            right.axvline(edge, ls=":", color=style.GREY, lw=1)
    left.set(xlabel="step", ylabel="arrival CV across ranks (%)")
    left.set_title("balance over time", fontsize=10)
    right.set(xlabel="arrival CV of a run (%)", ylabel="samples/s, % of the fastest repeat")
    right.set_title("balance against training speed", fontsize=10)
    for axes in (left, right):
        style.tidy(axes, "both")
        axes.legend(fontsize=7, frameon=False, loc="best")
    return made


def _against_speed(
    runs: Sequence[tuple[Configuration, Run, LoadBalance]],
) -> list[tuple[Configuration, list[tuple[float, float]]]]:
    grouped: dict[str, tuple[Configuration, list[tuple[float, float]]]] = {}
    for config, run, balance in runs:
        if run.samples_per_s is not None:
            fastest = max(config.values("samples_per_s"))
            _, points = grouped.setdefault(config.config_id, (config, []))
            points.append((balance.cv_percent, 100 * run.samples_per_s / fastest))
    return list(grouped.values())


def _began(run: Run) -> float:
    return run.cell.result.started_at if run.cell.result else 0.0
