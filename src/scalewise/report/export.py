"""The numbers of a report for other programs: JSON of every run, and CSV files."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scalewise.analysis import (
    Analysis,
    Estimate,
    Pair,
    RatioEstimate,
    Row,
    Run,
    as_plain,
    csv_rows,
    measure_run,
    outliers,
    rows,
    run_as_plain,
    value_in_columns,
)
from scalewise.records import TIMELINE_COLUMNS, timeline_rows, to_plain
from scalewise.report import (
    best_tables,
    communication_tables,
    cost_tables,
    doubts,
    findings,
    run_facts,
    study_tables,
)
from scalewise.report.sections import Table, printable

FORMAT_VERSION = 2
_MOST_TIMES = 1000
"""Times of a cell in the timeline: a report stays small, ``scalewise export`` writes all."""


def results_json(analysis: Analysis, samples: int | None = None) -> str:
    """``results.json``: raw numbers of each run, estimates over runs, comparisons, refusals."""
    plain = {
        "format_version": FORMAT_VERSION,
        "sweep": {
            "command": findings.command(analysis),
            "order_seed": analysis.sweep.order_seed,
            "created_at": analysis.sweep.created_at,
            "problems": list(analysis.sweep.problems),
        },
        "configurations": list(map(configuration_as_plain, rows(analysis))),
        "best_of_each_number_of_devices": best_tables.best_as_plain(analysis),
        "studies": study_tables.studies_as_plain(analysis),
        "target": cost_tables.target_as_plain(analysis, samples),
        "unfinished": [
            {"cell": c.planned.name, "state": c.state, "reason": c.ending.message}
            for c in analysis.unfinished
        ],
        "repeats": [
            {
                "configurations": [m.config_id for m in group.members],
                "runs_each": group.runs,
                "because": group.because,
                "reason": group.reason,
            }
            for group in analysis.repeats
        ],
        "faults": doubts.faults(analysis).texts,
        "findings": to_plain(analysis.disturbances),
        "doubts": doubts.doubts(analysis).texts,
        "trackers": run_facts.trackers(analysis).texts,
        "provenance": run_facts.provenance(analysis).texts,
    }
    return json.dumps(plain, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def results_csv(analysis: Analysis, warmup_epochs: int = 1) -> str:
    """``results.csv``: a row a configuration, units in the header, empty where not measured.

    The first ``warmup_epochs`` of a run are in no epoch time. The last columns are the leaves of
    the configuration that differ between rows.
    """
    return rows_csv(csv_rows(analysis, warmup_epochs))


def rows_csv(found: Sequence[Mapping[str, Any]]) -> str:
    """Rows by column; empty where a row has none of that name."""
    head = dict.fromkeys(key for row in found for key in row)
    return _csv([list(head), *([row.get(key) for key in head] for row in found)]) if found else ""


def table_csv(found: Table) -> str:
    """A table of the report: figures as numbers, with the ends of their intervals."""
    rows: list[dict[str, Any]] = [{} for _ in found.rows]
    head: dict[str, None] = {}
    # Column by column, so that a missing first value does not move its column to the end.
    for at, column in enumerate(found.columns):
        for row, values in zip(rows, found.rows, strict=True):
            value = values[at]
            if isinstance(value, Estimate | RatioEstimate):
                cells: dict[str, Any] = dict(value_in_columns(column.key, value))
            elif dataclasses.is_dataclass(value):
                cells = {f"{column.key}_{k}": v for k, v in to_plain(value).items()}
            else:
                cells = {} if value is None else {column.key: value}
            row |= cells
            head |= dict.fromkeys(cells)
    return _csv([list(head), *([row.get(key) for key in head] for row in rows)])


def timeline_csv(analysis: Analysis) -> str:
    """``gpu_timeline.csv``: every cell with GPUs; empty where no GPU was sampled."""
    rows = [
        [cell.planned.name, *row]
        for cell in analysis.sweep.cells
        for series in cell.devices
        if series.source == "nvml"
        for row in timeline_rows(series, _MOST_TIMES)
    ]
    return _csv([["cell", *TIMELINE_COLUMNS], *rows]) if rows else ""


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*map(_csv_cell, row)] for row in rows)
    return text.getvalue()


def _csv_cell(value: Any) -> Any:
    """Text that a spreadsheet does not take for a formula, and a terminal not for a command."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def configuration_as_plain(row: Row) -> dict[str, Any]:
    """One of ``configurations`` in ``results.json``: its figures, what they rest on, every run."""
    analysis, config = row.analysis, row.config
    pair, refused = analysis.pair(config), analysis.refusal(config)
    return {
        **as_plain(row),
        "differing": dict(config.leaves),
        "identity": dict(config.identity),
        "cost_missing": analysis.cost(config).missing,
        "outlier_runs": to_plain(outliers(config.values("global_samples_per_s"))),
        "invalid": to_plain(analysis.invalid.get(config.config_id, ())),
        "comparison": _comparison(pair) if pair else None,
        "refused": refused and {"reason": refused.reason, "differing": to_plain(refused.differing)},
        "budget": to_plain(row.budget),
        "mfu": [
            {"cell": run.cell.planned.name, **to_plain(result)}
            for run, result in zip(config.runs, analysis.mfu[config.config_id], strict=True)
        ],
        "communication": communication_tables.communication_as_plain(analysis, config),
        "profiles": [
            {
                "cell": run.cell.planned.name,
                "ranks": communication_tables.profiles_as_plain(analysis, run.cell),
            }
            for run in config.runs
            if run.cell.profiles
        ],
        "runs": [_run(run) for run in config.runs],
        "set_aside": [
            {"reason": one.reason, **_run(measure_run(one.cell))} for one in config.set_aside
        ],
    }


def _comparison(pair: Pair) -> dict[str, Any]:
    """What the verdict rests on, beside the figures."""
    return {
        "baseline": pair.single.config_id,
        **to_plain(pair.judgement),
        "money": pair.money,
        "loss": to_plain(pair.loss),
    }


def _run(run: Run) -> dict[str, Any]:
    result = run.cell.result
    return {
        **run_as_plain(run),
        "throughput": to_plain(run.throughput),
        "anatomy": to_plain(run.anatomy),
        "balance": to_plain(run.balance),
        "usage": to_plain(run.usage),
        "sent_by_the_busiest_rank": to_plain(result and communication_tables.busiest(result.ranks)),
        "shards": to_plain(run.shards),
        "missing": dict(run.missing),
        "problems": list(run.cell.problems),
    }
