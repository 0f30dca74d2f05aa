"""The numbers of a report for other programs: JSON of every run, CSV and pandas tables.

A row of a pandas table is one thing: a cell, a run, a configuration, a step of a rank, a reading of
a device. docs/tables.md says what each column holds. Missing is missing: never 0.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from scalewise.analysis import (
    Analysis,
    CellRecords,
    Pair,
    Row,
    Run,
    all_figures,
    analyse,
    csv_rows,
    load_sweep,
    measure_run,
    outliers,
    rows,
    setting,
    value_in_columns,
)
from scalewise.records import (
    READINGS,
    STEP_DTYPE,
    TIMELINE_COLUMNS,
    StepSeries,
    timeline_rows,
    to_plain,
)
from scalewise.report import device_tables, findings, run_facts, study_tables
from scalewise.report.sections import Table, printable

if TYPE_CHECKING:
    import pandas as pd

FORMAT_VERSION = 2
_MOST_TIMES = 1000
"""Times of a cell in the timeline: a report stays small, ``scalewise export`` writes all."""


def results_json(analysis: Analysis) -> str:
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
        "studies": study_tables.studies_as_plain(analysis),
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
        "remarks": [
            {
                "code": one.code,
                "gravity": one.gravity,
                "about": one.about or None,
                "run": one.run or None,
                "figures": to_plain(one.figures),
                "text": one.text,
            }
            for one in analysis.remarks
        ],
        "rehearsals": [
            {
                "configuration": one.config.config_id,
                **to_plain(one.record),
                "verdict": one.word,
                "reason": one.reason,
                "speedup_ratio": to_plain(one.speedup),
                "step_time_ms": to_plain(one.step_time_ms),
                "measured": one.measured and one.measured.config_id,
                "step_error_ratio": to_plain(one.step_error),
            }
            for one in analysis.rehearsals
        ],
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
            cells = {} if values[at] is None else value_in_columns(column.key, values[at])
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
        **row.as_plain(),
        "differing": dict(config.leaves),
        "identity": dict(config.identity),
        "cost_missing": analysis.cost(config).missing,
        "outlier_runs": to_plain(outliers(config.values("global_samples_per_s"))),
        "comparison": _comparison(analysis, pair) if pair else None,
        "refused": refused and {"reason": refused.reason, "differing": to_plain(refused.differing)},
        "budget": to_plain(row.budget),
        "mfu": [
            {"cell": run.cell.planned.name, **to_plain(result)}
            for run, result in zip(config.runs, analysis.mfu[config.config_id], strict=True)
        ],
        "communication": to_plain(analysis.communication.get(config.config_id)),
        "profiles": [
            {
                "cell": run.cell.planned.name,
                "ranks": device_tables.profiles_as_plain(analysis, run.cell),
            }
            for run in config.runs
            if run.cell.profiles
        ],
        "runs": [_run(run) for run in config.runs],
        "set_aside": [
            {"reason": one.reason, **_run(measure_run(one.cell))} for one in config.set_aside
        ],
    }


def _comparison(analysis: Analysis, pair: Pair) -> dict[str, Any]:
    """What the verdict rests on, beside the figures."""
    return {
        "baseline": pair.single.config_id,
        **to_plain(pair.final),
        "reason": analysis.reasons[pair.multi.config_id],
        "loss": to_plain(pair.loss),
    }


def _run(run: Run) -> dict[str, Any]:
    result = run.cell.result
    return {
        **run.as_plain(),
        "throughput": to_plain(run.throughput),
        "anatomy": to_plain(run.anatomy),
        "balance": to_plain(run.balance),
        "usage": to_plain(run.usage),
        "sent_by_the_busiest_rank": to_plain(result and device_tables.busiest(result.ranks)),
        "shards": to_plain(run.shards),
        "missing": dict(run.missing),
        "problems": list(run.cell.problems),
    }


_GROUPS = ("model", "dataset", "strategy", "precision", "execution", "optimizer")
_STEP_TIMES = tuple(name for name in STEP_DTYPE.names or () if name.endswith("_ms"))


@dataclass(frozen=True)
class Tables:
    """The tables of one sweep. Each is made when it is first asked for."""

    analysis: Analysis = field(repr=False)

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row a planned cell, whether or not it has a result."""
        return _frame(map(_cell_row, self.analysis.sweep.cells))

    @cached_property
    def configurations(self) -> pd.DataFrame:
        """One row a configuration: its figures, its verdict and where its time goes."""
        shown = all_figures(self.analysis)
        return _frame(row.in_columns(shown) for row in rows(self.analysis))

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row a finished run, with every figure taken from it, those set aside last."""
        return _frame(
            run.as_plain() | {"configuration": config.label, "set_aside": reason}
            for config in self.analysis.configurations
            for run, reason in (
                *((run, None) for run in config.runs),
                *((measure_run(one.cell), one.reason) for one in config.set_aside),
            )
        )

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row a step of a rank, warm-up included; :meth:`steps_of` takes less memory."""
        return _steps(self.analysis.sweep.cells)

    @cached_property
    def devices(self) -> pd.DataFrame:
        """One row a reading of a device, or on a CPU host of a rank's process."""
        return _frame(row for cell in self.analysis.sweep.cells for row in _device_rows(cell))

    def steps_of(self, cell: str) -> pd.DataFrame:
        """The rows of :attr:`steps` of one cell, by its name. Raises KeyError for another."""
        return _steps([{one.planned.name: one for one in self.analysis.sweep.cells}[cell]])


def load(folder: str | os.PathLike[str]) -> Tables:
    """Read a sweep's folder, or its archive, and analyse it.

    Raises :class:`~scalewise.records.RecordError` if it holds no sweep, and ImportError where
    pandas is missing.
    """
    if find_spec("pandas") is None:
        raise ImportError("found no pandas; needed: pip install 'scalewise[tables]'")
    return Tables(analyse(load_sweep(Path(folder))))


def _frame(rows: Iterator[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame.from_records(list(rows))
    # What is missing everywhere has the type of a missing number, in Parquet too.
    return frame.astype(dict.fromkeys(frame.columns[frame.isna().all()], float))


def _cell_row(cell: CellRecords) -> dict[str, Any]:
    config, result, planned = cell.config or {}, cell.result, cell.planned
    return {
        "cell": planned.name,
        "config_id": planned.config_id,
        "repeat": planned.repeat,
        "state": cell.state,
        "overrides": " ".join(planned.overrides),
        **{group: setting(config, f"{group}.name") for group in _GROUPS},
        "seed": config.get("seed"),
        "world_size": result and result.world_size,
        "rehearsed_devices": result and result.rehearsed and result.rehearsed.ranks,
        "scaling": result and result.scaling,
        "global_batch_size_samples": result and result.global_batch_size,
        "per_device_batch_size_samples": result and result.per_device_batch_size,
        "started_at_unix_s": result and result.started_at,
        "took_s": result and result.elapsed_s,
        "device": result and result.ranks[0].device.name,
        "host": cell.provenance and cell.provenance.host,
        "started": cell.provenance and cell.provenance.started,
        "failure": cell.ending.message or None,
    }


def _steps(cells: Iterable[CellRecords]) -> pd.DataFrame:
    import pandas as pd

    frames = (_rank_steps(cell, series) for cell in cells for series in cell.steps)
    known = [frame for frame in frames if len(frame)]
    return pd.concat(known, ignore_index=True) if known else pd.DataFrame()


def _rank_steps(cell: CellRecords, series: StepSeries) -> pd.DataFrame:
    import pandas as pd

    rows = series.rows
    start_s = (rows["start_ns"] + series.epoch_offset_ns) / 1e9
    device_ms = rows["device_step_ms"]
    step_ms = np.where(np.isnan(device_ms), rows["host_step_ms"], device_ms)
    ranks = cell.result.ranks if cell.result else ()
    counted = all(one.is_counted for one in ranks if one.rank == series.rank)
    samples = rows["samples"] if counted else np.full(len(rows), np.nan)
    return pd.DataFrame({
        "cell": pd.Categorical([cell.planned.name] * len(rows)),
        "rank": series.rank,
        "step": rows["step"],
        "start_unix_s": start_s,
        "epoch": rows["epoch"],
        "samples_of_rank": samples,
        "is_timed": series.is_timed,
        "samples_per_s_of_rank": samples / (step_ms / 1e3),
        **_readings_at(cell, series.rank, start_s + rows["host_step_ms"] / 1e3),
        **{name: rows[name] for name in _STEP_TIMES},
    })  # fmt: skip


_BESIDE_STEPS = ("memory_used_mib", "utilization_percent")


def _readings_at(
    cell: CellRecords, rank: int, when: npt.NDArray[np.float64]
) -> dict[str, npt.NDArray[np.float64]]:
    """What was last read of a rank's device at each Unix time; NaN two intervals later."""
    found = {name: np.full(len(when), np.nan) for name in _BESIDE_STEPS}
    for series in cell.devices:
        for device in (one for one in series.devices if one.rank == rank):
            at = np.array(series.times)
            last = np.searchsorted(at, when, side="right") - 1
            known = last >= 0
            known[known] = when[known] - at[last[known]] <= 2 * series.interval_s
            for name in _BESIDE_STEPS:
                values = np.array(series.values(device.id, name), dtype=float)
                found[name][known] = values[last[known]]
    return found


def _device_rows(cell: CellRecords) -> Iterator[dict[str, Any]]:
    for series in cell.devices:
        facts = {one.id: one for one in series.devices}
        for time, readings in zip(series.times, series.samples, strict=True):
            for reading in readings.values():
                device = facts.get(reading.id)
                yield {
                    "cell": cell.planned.name,
                    "host": series.host,
                    "source": series.source,
                    "time_unix_s": time,
                    "device_id": reading.id,
                    "device": device and device.name,
                    "rank": device and device.rank,
                    **{
                        name: ", ".join(value) if isinstance(value, tuple) else value
                        for name in READINGS
                        for value in (getattr(reading, name),)
                    },
                }
