"""Runs mirrored to a local Trackio project, and its dashboard.

Rows go through Trackio's storage layer rather than through ``trackio.init().log()``, for three
reasons: a row may carry its true time and an id, so that mirroring it again changes nothing; a full
disk or a read-only folder raises instead of being lost in silence; and any number of runs may be
open at once. What is here goes elsewhere by ``trackio sync``.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote

import trackio
from trackio import fragments, utils
from trackio.sqlite_storage import SQLiteStorage

from scalewise.config import ConfigError
from scalewise.host import say, tell
from scalewise.tracking.tracker import Answer, Row, RunInfo, RunSummary, listens

_MOST_ROWS = 500
"""Rows that are written at once."""
_RESERVED = frozenset(utils.RESERVED_KEYS)
_ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
"""Variables that would send an answer, and nothing else, to a server or a Space."""


class _Batch(NamedTuple):
    metrics: list[dict[str, Any]]
    system: list[dict[str, Any]]
    alerts: list[dict[str, Any]]
    config: Mapping[str, Any] | None
    """The run's, if it is not there yet."""


class TrackioRun:
    """One run of a project under ``TRACKIO_DIR``: in its database, or in JSON lines.

    Trackio itself keeps JSON lines on a network disk, until a dashboard imports them.
    """

    def __init__(self, info: RunInfo) -> None:
        SQLiteStorage.validate_project_name(info.tracking.project)
        self._run = {"project": info.tracking.project, "run": info.name, "run_id": info.run_id}
        self._lines = fragments.FragmentWriter() if utils.get_storage_mode() == "jsonl" else None
        self._config: dict[str, Any] = {
            **info.config,
            # Its page groups runs by keys of the top alone.
            "row": info.row,
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

    def _entry(self, row: Row) -> dict[str, Any]:
        return {
            **self._run,
            "metrics": {name_in_trackio(name): value for name, value in row.values.items()},
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

    def finish(self, summary: RunSummary) -> None:
        self._config = {**self._config, **summary.config}
        self._config_is_new = True
        if summary.values:
            now = datetime.now(UTC).timestamp()
            self.log([Row("metrics", "summary", now, self._last_step, summary.values)])

    def log_answer(self, answer: Answer) -> None:
        """Through Trackio's own run: pages and artifacts have no other way in."""
        project, name, run_id = self._run.values()
        SQLiteStorage.delete_run(project, name)
        for elsewhere in _ELSEWHERE:  # nothing else happens in the process of an answer
            os.environ.pop(elsewhere, None)
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


def name_in_trackio(name: str) -> str:
    """The name of a series; Trackio would change or hide one of its own."""
    return f"value/{name}" if name in _RESERVED else name


def _timestamp(unix_time: float) -> str:
    """ISO 8601, in UTC."""
    return datetime.fromtimestamp(unix_time, UTC).isoformat()


def show_dashboard(project: str, host: str, port: int, *, url_only: bool) -> None:
    """Start the Trackio dashboard and print its full URL, until Ctrl-C.

    The full URL carries the token that allows renaming and deleting runs. With ``url_only`` nothing
    is started, and only where it is gets printed. Raises :class:`ConfigError` if the project does
    not exist or the port is taken.
    """
    url = f"http://{host}:{port}/?project={quote(project)}"
    if url_only:
        tell(url)
        if not listens(host, port, 1.0):
            say(f"nothing listens there: start it with scalewise trackio-view --project {project}")
        return
    if not (utils.TRACKIO_DIR / f"{project}.db").exists():
        found = ", ".join(sorted(path.stem for path in utils.TRACKIO_DIR.glob("*.db"))) or "none"
        raise ConfigError(f"project: found {project!r}; in {utils.TRACKIO_DIR} there is: {found}")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            _, _, _, full_url = trackio.show(
                project=project, host=host, server_port=port, open_browser=False, block_thread=False
            )
    except OSError as error:
        raise ConfigError(
            f"port {port}: {error}; allowed: another --port, or the page that may be at {url}"
        ) from error
    tell(f"Trackio dashboard: {full_url}")
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
