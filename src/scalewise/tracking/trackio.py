"""Runs mirrored to a local Trackio project."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

from trackio import alerts, utils
from trackio.sqlite_storage import SQLiteStorage

from scalewise.records import Alert
from scalewise.tracking.base import RunInfo, RunSummary, Values
from scalewise.tracking.trackio_store import Rows, Store, open_store

_FLUSH_ROWS = 500
_RESERVED = frozenset(utils.RESERVED_KEYS)


class TrackioTracker:
    """The projects under ``TRACKIO_DIR``."""

    def start_run(self, info: RunInfo) -> TrackioRun:
        SQLiteStorage.validate_project_name(info.tracking.project)
        return TrackioRun(info, open_store(info))


class TrackioRun:
    """One run of a project."""

    def __init__(self, info: RunInfo, store: Store) -> None:
        self._info = info
        self._store = store
        self._config: dict[str, Any] = {
            **info.config,
            "tags": list(info.tags),
            "_Username": None,
            "_Created": _timestamp(datetime.now(UTC).timestamp()),
            "_Group": info.group,
        }
        self._config_is_new = True
        self._metrics = Rows()
        self._system = Rows()
        self._alerts: list[dict[str, Any]] = []
        self._last_step = 0

    @property
    def location(self) -> str:
        return f"{self._info.tracking.project}/{self._info.name} in {utils.TRACKIO_DIR}"

    @property
    def shortcoming(self) -> str | None:
        return None

    def log(self, row_id: str, time: float, step: int, values: Values) -> None:
        self._last_step = max(self._last_step, step)
        self._append(self._metrics, row_id, time, step, values)

    def log_system(self, row_id: str, time: float, values: Values) -> None:
        self._append(self._system, row_id, time, 0, values)

    def _append(self, rows: Rows, row_id: str, time: float, step: int, values: Values) -> None:
        rows.ids.append(f"{self._info.run_id}:{row_id}")
        rows.times.append(_timestamp(time))
        rows.steps.append(step)
        # Trackio keeps these names for itself: ours would be renamed or hidden.
        rows.values.append({f"value/{k}" if k in _RESERVED else k: v for k, v in values.items()})
        if len(rows) >= _FLUSH_ROWS:
            self.flush()

    def alert(self, row_id: str, time: float, step: int, alert: Alert) -> None:
        self._alerts.append(
            {
                "title": alert.title,
                "text": alert.text,
                "level": alert.level,
                "step": step,
                "timestamp": _timestamp(time),
                "alert_id": f"{self._info.run_id}:{row_id}",
            }
        )

    def flush(self) -> None:
        if self._metrics:
            config = self._config if self._config_is_new else None
            self._store.write_metrics(self._metrics, config)
            self._metrics, self._config_is_new = Rows(), False
        if self._system:
            self._store.write_system(self._system)
            self._system = Rows()
        if self._alerts:
            self._store.write_alerts(self._alerts)
            self._tell_webhook()
            self._alerts = []

    def _tell_webhook(self) -> None:
        """As ``trackio.alert`` does, where the user asked for it."""
        url = os.environ.get("TRACKIO_WEBHOOK_URL")
        least = alerts.resolve_webhook_min_level(os.environ.get("TRACKIO_WEBHOOK_MIN_LEVEL"))
        if not url:
            return
        for entry in self._alerts:
            level = alerts.AlertLevel(entry["level"])
            if alerts.should_send_webhook(level, least):
                alerts.send_webhook(
                    url, level, entry["title"], entry["text"], self._info.tracking.project,
                    self._info.name, entry["step"], entry["timestamp"],
                )  # fmt: skip

    def finish(self, summary: RunSummary) -> None:
        self._config = {**self._config, **summary.config}
        self._config_is_new = True
        if summary.values:
            now = datetime.now(UTC).timestamp()
            self.log("summary", now, self._last_step, summary.values)
        self.flush()

    def read_back(self) -> int | None:
        return self._store.row_count()


def _timestamp(unix_time: float) -> str:
    return datetime.fromtimestamp(unix_time, UTC).isoformat()
