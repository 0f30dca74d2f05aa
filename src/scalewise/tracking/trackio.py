"""Runs mirrored to a local Trackio project.

Rows go through Trackio's storage layer rather than through ``trackio.init().log()``, for three
reasons: a row may carry its true time and an id, so that mirroring it again changes nothing; a full
disk or a read-only folder raises instead of being lost in silence; and any number of runs may be
open at once. A server that the user has chosen gets the project when its runs are complete.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import trackio
from trackio import alerts, fragments, utils
from trackio.media import get_project_media_path
from trackio.sqlite_storage import SQLiteStorage

from scalewise.tracking.tracker import Answer, Row, RunInfo, RunSummary
from scalewise.tracking.trackio_server import hand_over, local_only

_MOST_ROWS = 500
"""Rows that are written at once."""
_RESERVED = frozenset(utils.RESERVED_KEYS)
_OF_A_GPU: Final[Mapping[str, tuple[str, float]]] = {
    "utilization_percent": ("utilization", 1),
    "memory_used_mib": ("allocated_memory", 1 / 1024),
    "power_w": ("power", 1),
    "temperature_c": ("temp", 1),
    "sm_clock_mhz": ("sm_clock", 1),
    "memory_clock_mhz": ("memory_clock", 1),
    "pcie_tx_mib_per_s": ("pcie_tx", 1),
    "pcie_rx_mib_per_s": ("pcie_rx", 1),
    "ecc_corrected": ("corrected_memory_errors", 1),
    "ecc_uncorrected": ("uncorrected_memory_errors", 1),
}
"""Ours to Trackio's own name of the same reading, and its unit in ours."""
_OF_ALL_GPUS: Final[Mapping[str, tuple[str, float]]] = {
    "gpus/mean_utilization_percent": ("gpu/mean_utilization", 1),
    "gpus/total_memory_used_mib": ("gpu/total_allocated_memory", 1 / 1024),
    "gpus/total_power_w": ("gpu/total_power", 1),
}
_GPU: Final = re.compile(r"(gpu/[^/]+)/(.+)")


class TrackioTracker:
    """The projects under ``TRACKIO_DIR``."""

    def __init__(self) -> None:
        self._replaced: list[str] = []
        """Names of answers whose earlier run is gone from the local project."""

    def start_run(self, info: RunInfo) -> TrackioRun:
        SQLiteStorage.validate_project_name(info.tracking.project)
        return TrackioRun(info, self._replaced)

    def supersede(self, old: RunInfo) -> None:
        project, run_id = old.tracking.project, old.run_id
        for run in SQLiteStorage.get_run_records(project):
            if run["id"] == run_id and run["name"] != old.name:
                SQLiteStorage.rename_run(project, str(run["name"]), old.name, run_id)

    def publish(self, project: str) -> None:
        hand_over(project, self._replaced)


class _Batch(NamedTuple):
    """Rows that are written at once, as Trackio's storage takes them."""

    metrics: list[dict[str, Any]]
    system: list[dict[str, Any]]
    alerts: list[dict[str, Any]]
    config: Mapping[str, Any] | None
    """The run's, if it is not there yet."""


class TrackioRun:
    """One run of a project: in its database, or in JSON lines where Trackio itself writes those.

    Trackio keeps JSON lines on a network disk, until a dashboard imports them.
    """

    def __init__(self, info: RunInfo, replaced: list[str]) -> None:
        self._replaced = replaced
        self._run = {"project": info.tracking.project, "run": info.name, "run_id": info.run_id}
        self._lines = fragments.FragmentWriter() if utils.get_storage_mode() == "jsonl" else None
        self._config: dict[str, Any] = {
            **info.config,
            "tags": list(info.tags),
            "_Username": None,
            "_Created": _timestamp(datetime.now(UTC).timestamp()),
            "_Group": info.group,
        }
        self._config_is_new = True
        self._last_step = 0

    @property
    def location(self) -> str:
        return f"{self._run['project']}/{self._run['run']} in {utils.TRACKIO_DIR}"

    def log(self, rows: Sequence[Row]) -> None:
        self._last_step = max([self._last_step, *(row.step for row in rows)])
        for first in range(0, len(rows), _MOST_ROWS):
            some = rows[first : first + _MOST_ROWS]
            batch = _Batch(
                [self._entry(row) for row in some if row.kind == "metrics"],
                [self._entry(row) for row in some if row.kind == "system"],
                [self._alert(row) for row in some if row.alert is not None],
                self._config if self._config_is_new else None,
            )
            write = self._write_database if self._lines is None else self._write_lines
            write(batch)
            self._config_is_new = self._config_is_new and not batch.metrics
            self._tell_webhook(batch.alerts)

    def _entry(self, row: Row) -> dict[str, Any]:
        values = dict(map(as_trackio_says, row.values, row.values.values()))
        return {
            **self._run,
            "metrics": values,
            "timestamp": _timestamp(row.time),
            "log_id": f"{self._run['run_id']}:{row.id}",
            "step": row.step,
        }

    def _alert(self, row: Row) -> dict[str, Any]:
        assert row.alert is not None
        return {
            **self._run,
            "title": row.alert.title,
            "text": row.alert.text,
            "level": row.alert.level,
            "step": row.step,
            "timestamp": _timestamp(row.time),
            "alert_id": f"{self._run['run_id']}:{row.id}",
        }

    def _write_database(self, batch: _Batch) -> None:
        """A row whose id the database holds already changes nothing."""
        if batch.metrics:
            SQLiteStorage.bulk_log(
                **self._columns(batch.metrics, "step", "timestamp", "log_id"),
                metrics_list=[e["metrics"] for e in batch.metrics],
                config=None if batch.config is None else dict(batch.config),
            )
        if batch.system:
            SQLiteStorage.bulk_log_system(
                **self._columns(batch.system, "timestamp", "log_id"),
                metrics_list=[e["metrics"] for e in batch.system],
            )
        if batch.alerts:
            keys = ("title", "text", "level", "step", "timestamp", "alert_id")
            SQLiteStorage.bulk_alert(**self._columns(batch.alerts, *keys))

    def _columns(self, entries: Sequence[Mapping[str, Any]], *keys: str) -> dict[str, Any]:
        """The run's names, and ``steps=[1, 2]``: the values of each key, under its plural."""
        return {**self._run, **{f"{key}s": [entry[key] for entry in entries] for key in keys}}

    def _write_lines(self, batch: _Batch) -> None:
        assert self._lines is not None
        first = [{**entry, "config": batch.config} for entry in batch.metrics[:1]]
        self._lines.write_local(
            [
                *map(fragments.metric_record, [*first, *batch.metrics[1:]]),
                *map(fragments.system_metric_record, batch.system),
                *map(fragments.alert_record, batch.alerts),
            ]
        )

    def _tell_webhook(self, said: Sequence[dict[str, Any]]) -> None:
        """As ``trackio.alert`` does, where the user asked for it."""
        url = os.environ.get("TRACKIO_WEBHOOK_URL")
        least = alerts.resolve_webhook_min_level(os.environ.get("TRACKIO_WEBHOOK_MIN_LEVEL"))
        if not url:
            return
        for entry in said:
            level = alerts.AlertLevel(entry["level"])
            if alerts.should_send_webhook(level, least):
                alerts.send_webhook(
                    url, level, entry["title"], entry["text"], entry["project"], entry["run"],
                    entry["step"], entry["timestamp"],
                )  # fmt: skip

    def finish(self, summary: RunSummary) -> None:
        self._config = {**self._config, **summary.config}
        self._config_is_new = True
        if summary.values:
            now = datetime.now(UTC).timestamp()
            self.log([Row("metrics", "summary", now, self._last_step, summary.values)])
        self._keep_logs(summary.logs)

    def _keep_logs(self, logs: Mapping[str, str]) -> None:
        """Trackio has no page of logs; that of a project's files shows texts."""
        project, name, run_id = self._run.values()
        # A cell that runs again has another run of its name.
        place = f"logs/{name} {run_id[:4]}"
        for stream, text in logs.items():
            path = get_project_media_path(project, relative_path=place) / f"{stream}.log"
            path.write_text(text, encoding="utf-8")

    def log_answer(self, answer: Answer) -> None:
        """Through Trackio's own run: pages and artifacts have no other way in."""
        project, name, run_id = self._run.values()
        SQLiteStorage.delete_run(project, name)
        self._replaced.append(name)
        with local_only():
            run = trackio.init(
                project, name, group=self._config["_Group"],
                config={k: v for k, v in self._config.items() if not k.startswith("_")},
                embed=False, auto_log_gpu=False, auto_log_cpu=False,
            )  # fmt: skip
            run.log({**answer.values, "report": trackio.Markdown(answer.page)})
            run.log_artifact(answer.report, f"report-{run_id}", "report", overwrite=True)
            run.finish()  # type: ignore[no-untyped-call]

    def read_back(self) -> int | None:
        """Rows in the database; None of JSON lines, which nobody counts before their import."""
        if self._lines is not None:
            return None
        project, run, run_id = self._run.values()
        rows = SQLiteStorage.get_log_count(project, run, run_id)
        return int(rows) + len(SQLiteStorage.get_system_logs(project, run, run_id))


def as_trackio_says(name: str, value: float) -> tuple[str, float]:
    """A series under the name and in the unit that Trackio's own readings have, if it is one."""
    if name in _RESERVED:  # ours would be renamed or hidden
        return f"value/{name}", value
    if name in _OF_ALL_GPUS:
        theirs, unit = _OF_ALL_GPUS[name]
        return theirs, value * unit
    match = _GPU.fullmatch(name)
    if match and match[2] in _OF_A_GPU:
        theirs, unit = _OF_A_GPU[match[2]]
        return f"{match[1]}/{theirs}", value * unit
    return name, value


def _timestamp(unix_time: float) -> str:
    """ISO 8601, in UTC."""
    return datetime.fromtimestamp(unix_time, UTC).isoformat()
