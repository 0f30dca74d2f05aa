"""How rows reach the disk of a local Trackio project, and how many Trackio finds there.

They go through Trackio's storage layer rather than through ``trackio.init().log()``, for three
reasons: a row may carry its true time and an id, so that mirroring it again changes nothing;
a full disk or a read-only folder raises instead of being lost in silence; and any number of
runs may be open at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trackio import fragments, utils
from trackio.sqlite_storage import SQLiteStorage

from scalewise.tracking.base import RunInfo


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
