"""Runs mirrored to a local Trackio project.

Rows go through Trackio's storage layer rather than through ``trackio.init().log()``, for three
reasons: a row may carry its true time and an id, so that mirroring it again changes nothing; a full
disk or a read-only folder raises instead of being lost in silence; and any number of runs may be
open at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import trackio
from trackio import alerts, fragments, utils
from trackio.sqlite_storage import SQLiteStorage

from scalewise.tracking.tracker import Answer, Row, RunInfo, RunSummary

_MOST_ROWS = 500
"""Rows that are written at once."""
_RESERVED = frozenset(utils.RESERVED_KEYS)


class TrackioTracker:
    """The projects under ``TRACKIO_DIR``."""

    def start_run(self, info: RunInfo) -> TrackioRun:
        SQLiteStorage.validate_project_name(info.tracking.project)
        return TrackioRun(info)


class TrackioRun:
    """One run of a project: in its database, or in JSON lines where Trackio itself writes those.

    Trackio keeps JSON lines on a network disk, until a dashboard imports them.
    """

    def __init__(self, info: RunInfo) -> None:
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
            metrics = [self._entry(row) for row in some if row.kind == "metrics"]
            system = [self._entry(row) for row in some if row.kind == "system"]
            said = [self._alert(row) for row in some if row.alert is not None]
            write = self._write_database if self._lines is None else self._write_lines
            write(metrics, system, said, self._config if self._config_is_new else None)
            self._config_is_new = self._config_is_new and not metrics
            self._tell_webhook(said)

    def _entry(self, row: Row) -> dict[str, Any]:
        # Trackio keeps the reserved names for itself: ours would be renamed or hidden.
        values = {f"value/{k}" if k in _RESERVED else k: v for k, v in row.values.items()}
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

    def _write_database(
        self,
        metrics: Sequence[dict[str, Any]],
        system: Sequence[dict[str, Any]],
        said: Sequence[dict[str, Any]],
        config: Mapping[str, Any] | None,
    ) -> None:
        """A row whose id the database holds already changes nothing."""
        if metrics:
            SQLiteStorage.bulk_log(
                **self._run,
                metrics_list=[e["metrics"] for e in metrics],
                steps=[e["step"] for e in metrics],
                timestamps=[e["timestamp"] for e in metrics],
                log_ids=[e["log_id"] for e in metrics],
                config=None if config is None else dict(config),
            )
        if system:
            SQLiteStorage.bulk_log_system(
                **self._run,
                metrics_list=[e["metrics"] for e in system],
                timestamps=[e["timestamp"] for e in system],
                log_ids=[e["log_id"] for e in system],
            )
        if said:
            SQLiteStorage.bulk_alert(
                **self._run,
                titles=[e["title"] for e in said],
                texts=[e["text"] for e in said],
                levels=[e["level"] for e in said],
                steps=[e["step"] for e in said],
                timestamps=[e["timestamp"] for e in said],
                alert_ids=[e["alert_id"] for e in said],
            )

    def _write_lines(
        self,
        metrics: Sequence[dict[str, Any]],
        system: Sequence[dict[str, Any]],
        said: Sequence[dict[str, Any]],
        config: Mapping[str, Any] | None,
    ) -> None:
        assert self._lines is not None
        with_config = [{**e, "config": config if i == 0 else None} for i, e in enumerate(metrics)]
        self._lines.write_local(
            [
                *map(fragments.metric_record, with_config),
                *map(fragments.system_metric_record, system),
                *map(fragments.alert_record, said),
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

    def log_answer(self, answer: Answer) -> None:
        """Through Trackio's own run: pages and artifacts have no other way in."""
        project, name, _ = self._run.values()
        SQLiteStorage.delete_run(project, name)
        run = trackio.init(
            project, name, group=self._config["_Group"],
            config={k: v for k, v in self._config.items() if not k.startswith("_")},
            embed=False, auto_log_gpu=False, auto_log_cpu=False,
        )  # fmt: skip
        run.log({**answer.values, "report": trackio.Markdown(answer.page)})
        run.log_artifact(answer.report, f"report-{self._run['run_id']}", "report", overwrite=True)
        run.finish()  # type: ignore[no-untyped-call]

    def read_back(self) -> int | None:
        """Rows in the database; None of JSON lines, which nobody counts before their import."""
        if self._lines is not None:
            return None
        project, run, run_id = self._run.values()
        rows = SQLiteStorage.get_log_count(project, run, run_id)
        return rows + len(SQLiteStorage.get_system_logs(project, run, run_id))


def _timestamp(unix_time: float) -> str:
    """ISO 8601, in UTC."""
    return datetime.fromtimestamp(unix_time, UTC).isoformat()
