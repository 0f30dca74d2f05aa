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
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import trackio
from trackio import fragments, utils
from trackio.sqlite_storage import SQLiteStorage

from scalewise.config import ConfigError
from scalewise.host import say, tell
from scalewise.records import to_plain
from scalewise.tracking.tracker import Answer, Row, RunInfo, RunSummary, listens

_MOST_ROWS = 500
"""Rows that are written at once."""
_RESERVED = frozenset(utils.RESERVED_KEYS)
_ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
"""Variables that would send an answer, and nothing else, to a server or a Space."""


class TrackioRun:
    """One run of a project under ``TRACKIO_DIR``: in its database, or in JSON lines.

    Trackio itself keeps JSON lines on a network disk, until a dashboard imports them.
    """

    def __init__(self, info: RunInfo) -> None:
        SQLiteStorage.validate_project_name(info.tracking.project)
        self._run = {"project": info.tracking.project, "run": info.name, "run_id": info.run_id}
        self._in_lines = utils.get_storage_mode() == "jsonl"
        # Of a row whose id the database holds already nothing changes.
        self._write: Callable[[list[dict[str, Any]]], object] = (
            fragments.FragmentWriter().write_local if self._in_lines else fragments.import_records
        )
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
            self._write([self._record(row) for row in rows[first : first + _MOST_ROWS]])

    def _record(self, row: Row) -> dict[str, Any]:
        """As a line of Trackio's; a new configuration goes with the first row of metrics."""
        key = f"{self._run['run_id']}:{row.id}"
        about = {**self._run, "step": row.step, "timestamp": _timestamp(row.time)}
        if row.alert is not None:
            return fragments.alert_record({**about, **to_plain(row.alert), "alert_id": key})
        values = {name_in_trackio(name): value for name, value in row.values.items()}
        entry = {**about, "metrics": values, "log_id": key}
        if row.kind == "system":
            return fragments.system_metric_record(entry)
        config = self._config if self._config_is_new else None
        self._config_is_new = False
        return fragments.metric_record({**entry, "config": config})

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
        if self._in_lines:
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
