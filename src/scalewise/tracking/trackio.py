"""Runs mirrored to a local Trackio project."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from trackio import alerts, fragments, utils
from trackio.sqlite_storage import SQLiteStorage

from scalewise.records import Alert
from scalewise.tracking.tracker import RunInfo, RunSummary, Values

# How rows reach the disk of a local Trackio project, and how many Trackio finds there.
#
# They go through Trackio's storage layer rather than through ``trackio.init().log()``, for three
# reasons: a row may carry its true time and an id, so that mirroring it again changes nothing; a
# full disk or a read-only folder raises instead of being lost in silence; and any number of runs
# may be open at once.


@dataclass
class Rows:
    """Rows of one kind waiting to be written together, column by column."""

    ids: list[str] = field(default_factory=list)
    times: list[str] = field(default_factory=list)
    """ISO 8601, in UTC."""
    steps: list[int] = field(default_factory=list)
    values: list[dict[str, float]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)


class Store(ABC):
    """Keeps the rows of one run. A row whose id it holds already changes nothing."""

    def __init__(self, info: RunInfo) -> None:
        self._project = info.tracking.project
        self._run = info.name
        self._run_id = info.run_id

    @abstractmethod
    def write_metrics(self, rows: Rows, config: Mapping[str, Any] | None) -> None:
        """Write rows that have steps; with ``config``, the run's configuration too."""

    @abstractmethod
    def write_system(self, rows: Rows) -> None:
        """Write readings of devices, which have no steps."""

    @abstractmethod
    def write_alerts(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Write alerts, each with the keys of ``trackio.alert`` and an ``alert_id``."""

    @abstractmethod
    def row_count(self) -> int | None:
        """Rows of this run, as Trackio counts them; None where it does not."""


class SqliteStore(Store):
    """Straight into the project's database."""

    def write_metrics(self, rows: Rows, config: Mapping[str, Any] | None) -> None:
        SQLiteStorage.bulk_log(
            project=self._project,
            run=self._run,
            run_id=self._run_id,
            metrics_list=rows.values,
            steps=rows.steps,
            timestamps=rows.times,
            log_ids=rows.ids,
            config=None if config is None else dict(config),
        )

    def write_system(self, rows: Rows) -> None:
        SQLiteStorage.bulk_log_system(
            project=self._project,
            run=self._run,
            run_id=self._run_id,
            metrics_list=rows.values,
            timestamps=rows.times,
            log_ids=rows.ids,
        )

    def write_alerts(self, entries: Sequence[Mapping[str, Any]]) -> None:
        SQLiteStorage.bulk_alert(
            project=self._project,
            run=self._run,
            run_id=self._run_id,
            titles=[e["title"] for e in entries],
            texts=[e["text"] for e in entries],
            levels=[e["level"] for e in entries],
            steps=[e["step"] for e in entries],
            timestamps=[e["timestamp"] for e in entries],
            alert_ids=[e["alert_id"] for e in entries],
        )

    def row_count(self) -> int:
        run = (self._project, self._run, self._run_id)
        return SQLiteStorage.get_log_count(*run) + len(SQLiteStorage.get_system_logs(*run))


class FragmentStore(Store):
    """Append-only JSON lines that the dashboard imports: what Trackio does on a network disk."""

    def __init__(self, info: RunInfo) -> None:
        super().__init__(info)
        self._writer = fragments.FragmentWriter()

    def write_metrics(self, rows: Rows, config: Mapping[str, Any] | None) -> None:
        records = [
            fragments.metric_record({**entry, "step": step})
            for entry, step in zip(self._entries(rows), rows.steps, strict=True)
        ]
        records[0]["config"] = None if config is None else dict(config)
        self._writer.write_local(records)

    def write_system(self, rows: Rows) -> None:
        self._writer.write_local([fragments.system_metric_record(e) for e in self._entries(rows)])

    def write_alerts(self, entries: Sequence[Mapping[str, Any]]) -> None:
        head = {"project": self._project, "run": self._run, "run_id": self._run_id}
        self._writer.write_local([fragments.alert_record({**head, **e}) for e in entries])

    def _entries(self, rows: Rows) -> list[dict[str, Any]]:
        columns = zip(rows.values, rows.times, rows.ids, strict=True)
        head = {"project": self._project, "run": self._run, "run_id": self._run_id}
        return [{**head, "metrics": v, "timestamp": t, "log_id": i} for v, t, i in columns]

    def row_count(self) -> None:
        """Nobody counts them before a dashboard has imported them."""


def open_store(info: RunInfo) -> Store:
    """The store that Trackio itself would use on this disk."""
    return FragmentStore(info) if utils.get_storage_mode() == "jsonl" else SqliteStore(info)


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
