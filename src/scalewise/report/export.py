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
    Configuration,
    Estimate,
    Metric,
    Pair,
    RatioEstimate,
    Run,
    SerialFraction,
    bounding,
    cost_ratio,
    epochs_after,
    estimate_positive,
    figure_as_plain,
    mean_anatomy,
    measure_run,
    measured_serial_fraction,
    outliers,
    speedup_at_equal_clocks,
    typical_speedup,
)
from scalewise.records import PHASES, TIMELINE_COLUMNS, timeline_rows, to_plain
from scalewise.report import (
    best_tables,
    communication_tables,
    cost_tables,
    doubts,
    findings,
    run_facts,
    scaling_tables,
    study_tables,
)
from scalewise.report.sections import Table, printable

FORMAT_VERSION = 1
_FIGURES = {
    "global_samples_per_s": "global_samples_per_s",
    "step_time_ms": "step_time_ms",
    "peak_memory_mib": "peak_memory_per_device_mib",
    "loss": "loss_reached",
    "val_accuracy": "val_accuracy_reached",
    "points_dropped_per_batch": "points_dropped_per_batch",
    "energy_j_per_million_samples": "energy_j_per_million_samples",
    "energy_j_per_step": "energy_j_per_step",
    "energy_j_per_run": "energy_j_per_run",
}
"""Key of a configuration in ``results.json`` to the figure that stands there."""
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
        "configurations": [configuration_as_plain(analysis, c) for c in analysis.configurations],
        "numbers_of_devices": cost_tables.gains_as_plain(analysis),
        "best_of_each_number_of_devices": best_tables.best_as_plain(analysis),
        "studies": study_tables.studies_as_plain(analysis),
        "target": cost_tables.target_as_plain(analysis, samples),
        "unfinished": [
            {"cell": c.planned.name, "state": c.state, "reason": c.failure}
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
    return rows_csv(configuration_rows(analysis, warmup_epochs))


def configuration_rows(analysis: Analysis, warmup_epochs: int = 1) -> list[dict[str, Any]]:
    """The rows of :func:`results_csv`, by column."""
    return [
        _csv_row(analysis, config, warmup_epochs) | dict(config.leaves)
        for config in analysis.configurations
    ]


def rows_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows by column; empty where a row has none of that name."""
    head = dict.fromkeys(key for row in rows for key in row)
    return _csv([list(head), *([row.get(key) for key in head] for row in rows)]) if rows else ""


def table_csv(found: Table) -> str:
    """A table of the report: figures as numbers, with the ends of their intervals."""
    rows: list[dict[str, Any]] = [{} for _ in found.rows]
    head: dict[str, None] = {}
    # Column by column, so that a missing first value does not move its column to the end.
    for at, column in enumerate(found.columns):
        for row, values in zip(rows, found.rows, strict=True):
            value = values[at]
            if isinstance(value, Estimate | RatioEstimate):
                cells: dict[str, Any] = dict(figure_columns(column.key, value))
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


def configuration_as_plain(analysis: Analysis, config: Configuration) -> dict[str, Any]:
    """One of ``configurations`` in ``results.json``: figures over runs, verdict, every run."""
    pair, refused = analysis.pair(config), analysis.refusal(config)
    return {
        "config_id": config.config_id,
        "label": config.label,
        "devices": config.devices,
        "cells": len(config.cells),
        "differing": dict(config.leaves),
        "identity": dict(config.identity),
        **{key: figure_as_plain(config.estimate(metric)) for key, metric in _FIGURES.items()},
        **cost_tables.cost_as_plain(analysis, config),
        "outlier_runs": to_plain(outliers(config.values("global_samples_per_s"))),
        "verdict": scaling_tables.verdict(analysis, config),
        "invalid": to_plain(analysis.invalid.get(config.config_id, ())),
        "comparison": _pair(analysis, pair) if pair else None,
        "refused": refused and {"reason": refused.reason, "differing": to_plain(refused.differing)},
        "budget": to_plain(analysis.budgets.get(config.config_id)),
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
            {"reason": one.reason, **_run(measure_run(one.cell))} for one in config.aside
        ],
    }


def _pair(analysis: Analysis, pair: Pair) -> dict[str, Any]:
    typical = typical_speedup(pair)
    at_equal_clocks = speedup_at_equal_clocks(analysis, pair)
    return {
        "single": pair.single.config_id,
        "devices": pair.devices,
        "speedup": figure_as_plain(pair.speedup),
        "speedup_of_median_steps": typical and typical.of_medians,
        "speedup_at_equal_clocks": at_equal_clocks,
        "efficiency": figure_as_plain(pair.efficiency),
        "efficiency_at_equal_clocks": at_equal_clocks and at_equal_clocks / pair.devices,
        **to_plain(pair.judgement),
        "money": pair.money,
        "seed_label": pair.seed_label,
        "loss_at_equal_samples": to_plain(pair.loss),
    }


def _run(run: Run) -> dict[str, Any]:
    cell = run.cell
    return {
        "cell": cell.planned.name,
        "repeat": cell.planned.repeat,
        "world_size": run.world_size,
        "scaling": cell.result and cell.result.scaling,
        "global_batch_size": cell.result and cell.result.global_batch_size,
        "per_device_batch_size": cell.result and cell.result.per_device_batch_size,
        "timed_from_step": cell.warm_up and cell.warm_up.timed_from,
        "timed_steps": run.throughput and run.throughput.steps,
        "warmup_rule": cell.warm_up and cell.warm_up.rule,
        "throughput": to_plain(run.throughput),
        "anatomy": to_plain(run.anatomy),
        "balance": to_plain(run.balance),
        "usage": to_plain(run.usage),
        "peak_memory_mib": run.value("peak_memory_per_device_mib"),
        "energy_j_per_million_samples": run.value("energy_j_per_million_samples"),
        "energy_j_per_step": run.value("energy_j_per_step"),
        "energy_j": run.value("energy_j_per_run"),
        "loss": run.loss and {"name": run.loss.name, "final": run.loss.final},
        "val_accuracy": run.value("val_accuracy_reached"),
        "sent_by_the_busiest_rank": to_plain(
            cell.result and communication_tables.busiest(cell.result.ranks)
        ),
        "shards": to_plain(run.shards),
        "missing": dict(run.missing),
        "problems": list(cell.problems),
    }


def _csv_row(analysis: Analysis, config: Configuration, warmup_epochs: int) -> dict[str, Any]:
    pair = analysis.sound_pair(config)
    result = config.runs[0].cell.result if config.runs else None
    anatomy = mean_anatomy(config)
    phases = anatomy[0] if anatomy else {}
    budget = analysis.budgets.get(config.config_id)
    limits = budget.limits if budget is not None else ()
    at_equal_clocks = speedup_at_equal_clocks(analysis, pair) if pair else None
    return {
        "configuration": config.label,
        **{group: config.name(group) for group in ("model", "dataset", "strategy")},
        "precision": scaling_tables.precision_word(config),
        "devices": config.devices,
        "scaling": result and result.scaling,
        "global_batch_size_samples": result and result.global_batch_size,
        "per_device_batch_size_samples": result and result.per_device_batch_size,
        "runs_done": len(config.runs),
        "runs_set_aside": len(config.aside),
        "runs_planned": len(config.cells),
        **_timed_columns(config),
        **figure_columns("global_samples_per_s", config.estimate("global_samples_per_s")),
        **figure_columns("step_time_ms", config.estimate("step_time_ms")),
        **figure_columns("speedup_ratio", pair.speedup if pair else None),
        "speedup_p_value": pair.speedup.p_value if pair else None,
        **figure_columns("efficiency_ratio", pair.efficiency if pair else None),
        "speedup_at_equal_clocks_ratio": at_equal_clocks,
        "efficiency_at_equal_clocks_ratio": (
            at_equal_clocks / pair.devices if pair and at_equal_clocks else None
        ),
        **_means(
            config,
            "peak_memory_per_device_mib",
            "memory_used_per_device_mib",
            "utilization_per_device_percent",
        ),
        "utilization_readings": sum(run.utilization_readings for run in config.runs),
        **_means(config, "arrival_cv_percent"),
        "loss_name": scaling_tables.loss_name(config),
        **_means(config, "loss_reached", "val_accuracy_reached", "points_dropped_per_batch"),
        "epoch_time_s": _mean_epoch_s(config, warmup_epochs),
        **_communication_row(analysis, config),
        **_means(config, "energy_j_per_million_samples", "energy_j_per_step", "energy_j_per_run"),
        **_cost_row(analysis, config),
        **{f"{phase}_ms": phases.get(phase) for phase in PHASES},
        "timeline": anatomy[2] if anatomy else None,
        "ideal_step_time_ms": budget and budget.ideal_ms,
        "main_limit": limits[0].cause if limits else None,
        "main_limit_ms": limits[0].ms if limits else None,
        "verdict": scaling_tables.verdict(analysis, config),
        "seed_label": pair.seed_label if pair else None,
        "reason": _reason(analysis, config),
    }


def _mean_epoch_s(config: Configuration, warmup_epochs: int) -> float | None:
    runs = [epochs_after(run.cell, warmup_epochs) for run in config.runs]
    means = [sum(seconds for _, seconds in each) / len(each) for each in runs if each]
    return estimate_positive(means).value if means else None


def _communication_row(analysis: Analysis, config: Configuration) -> dict[str, Any]:
    cost, pair = analysis.communication.get(config.config_id), analysis.sound_pair(config)
    serial = measured_serial_fraction(pair) if pair else None
    return {
        "compute_to_communication_ratio": cost.compute_to_communication if cost else None,
        "compute_to_communication_of": cost.against if cost else None,
        "amdahl_serial_fraction": serial.value if isinstance(serial, SerialFraction) else None,
    }


def _timed_columns(config: Configuration) -> dict[str, str | None]:
    """Of each run in turn, once where all are alike: ``20, 65, 20``."""
    runs = [(run.cell.warm_up, run.throughput) for run in config.runs]
    known = [(warm_up, timed) for warm_up, timed in runs if warm_up and timed]
    columns: dict[str, list[object]] = {
        "timed_from_step": [warm_up.timed_from for warm_up, _ in known],
        "timed_steps": [timed.steps for _, timed in known],
        "warmup_rule": [warm_up.rule for warm_up, _ in known],
    }
    return {
        name: ", ".join(map(str, values if len(set(values)) > 1 else values[:1])) or None
        for name, values in columns.items()
    }


def _cost_row(analysis: Analysis, config: Configuration) -> dict[str, Any]:
    found, pair = analysis.cost(config), analysis.sound_pair(config)
    price = found.price
    return {
        "usd_per_device_hour": price.usd_per_hour if price else None,
        "price_source": f"{price.source}, {price.date}" if price else None,
        **figure_columns("usd_per_million_samples", found.usd_per_million_samples),
        **figure_columns("sample_cost_ratio", cost_ratio(pair, analysis.costs) if pair else None),
    }


def figure_columns(name: str, figure: Estimate | RatioEstimate | None) -> dict[str, float | None]:
    """A figure with the ends of its interval; those that bound nothing are missing."""
    interval = bounding(figure)
    return {
        name: figure.value if figure else None,
        f"{name}_low95": interval.low if interval else None,
        f"{name}_high95": interval.high if interval else None,
    }


def _means(config: Configuration, *metrics: Metric) -> dict[str, float | None]:
    found = {metric: config.estimate(metric) for metric in metrics}
    return {name: one.value if one else None for name, one in found.items()}


def _reason(analysis: Analysis, config: Configuration) -> str | None:
    invalid = analysis.invalid.get(config.config_id)
    if invalid:
        return invalid[0].reason
    pair, refused = analysis.pair(config), analysis.refusal(config)
    if pair:
        return pair.judgement.reason
    if refused:
        return refused.reason
    return None if config.runs else config.cells[-1].failure
