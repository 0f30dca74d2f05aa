"""Where a local Trackio project goes once its runs are complete: its own server, or a Space.

``TRACKIO_SPACE_ID`` goes before ``TRACKIO_SERVER_URL``, as in Trackio itself. What could not be
handed over is in the local project all the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import huggingface_hub
import trackio
from huggingface_hub.errors import RepositoryNotFoundError
from trackio import utils
from trackio.remote_client import RemoteClient
from trackio.sqlite_storage import SQLiteStorage

from scalewise.config import in_one_line
from scalewise.tracking.tracker import TrackerError, server_answers

_NAMES = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
_REACH_S = 5.0
_TAKE_S = 60.0
_MOST_ROWS = 500
"""Rows that are sent at once."""
_COUNTS: Final = (
    "SELECT run_id, COUNT(*) AS found FROM (SELECT run_id FROM metrics UNION ALL "
    "SELECT run_id FROM system_metrics) GROUP BY run_id"
)
_ALERTS: Final = (
    "SELECT run_name AS run, run_id, title, text, level, step, timestamp, alert_id FROM alerts"
)


@contextmanager
def local_only() -> Iterator[None]:
    """Trackio itself knows of no server in here."""
    held = {name: os.environ.pop(name) for name in _NAMES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(held)


def hand_over(project: str, replaced: Sequence[str]) -> None:
    """Give a local project to the server or the Space that the user chose, if one was.

    ``replaced`` are names of runs that others took the place of. Raises :class:`TrackerError`
    where something is not there afterwards.
    """
    space, url = utils.resolve_space_id_and_server_url(None, None)
    try:
        if space:
            _sync_space(project, space)
        elif url:
            _hand_rows_over(_connect(url), project, replaced)
    except Exception as error:  # the seam to a server elsewhere
        why = in_one_line(error, with_class=not isinstance(error, TrackerError))
        raise TrackerError(
            f"{space or utils.parse_trackio_server_url(str(url))[0]}: {why}; the rows are in the "
            f"local project {project} alone: scalewise mirror FOLDER hands them over"
        ) from error


def _sync_space(project: str, name: str) -> None:
    space, *_ = utils.preprocess_space_and_dataset_ids(name, None, None)
    assert space is not None
    try:
        sdk = huggingface_hub.HfApi().space_info(space, timeout=_REACH_S).sdk
    except RepositoryNotFoundError:
        # Trackio would make one, which everybody can read.
        raise TrackerError(
            f"no such Space, or not yours; trackio sync --space-id {space} creates it"
        ) from None
    trackio.sync(project, space_id=space, sdk=sdk or "gradio", force=True)


def _connect(typed: str) -> RemoteClient:
    url, token = utils.parse_trackio_server_url(typed)
    token = token or os.environ.get("TRACKIO_WRITE_TOKEN")
    if not url.startswith(("http://", "https://")):
        raise TrackerError("TRACKIO_SERVER_URL: allowed: http:// or https://")
    if not token:
        raise TrackerError(
            "TRACKIO_SERVER_URL: found no write token; allowed: the URL that the server prints, "
            "with its ?write_token=, or TRACKIO_WRITE_TOKEN beside it"
        )
    if not server_answers(url, _REACH_S):
        raise TrackerError("it cannot be reached")
    return RemoteClient(url, write_token=token, httpx_kwargs={"timeout": _TAKE_S})


def _hand_rows_over(client: RemoteClient, project: str, replaced: Sequence[str]) -> None:
    """Send the runs that the server lacks rows of; a row it has already changes nothing.

    ``trackio.sync`` knows Spaces alone.
    """
    if utils.get_storage_mode() == "jsonl":
        raise TrackerError("found JSON lines; allowed: a TRACKIO_DIR on a disk of this host")
    for name in replaced:
        client.predict(api_name="/delete_run", project=project, run=name)
    names = {run["id"]: run["name"] for run in SQLiteStorage.get_run_records(project)}
    for run in client.predict(api_name="/get_runs_for_project", project=project):
        new = names.get(run["id"], run["name"])
        if new != run["name"]:
            both = {"old_name": run["name"], "new_name": new}
            client.predict(api_name="/rename_run", project=project, run_id=run["id"], **both)
    lacking = _lacking(client, project)
    logs = SQLiteStorage.get_all_logs_for_sync(project)
    for entry in {entry["run_id"]: entry for entry in logs}.values():
        run_id, name = entry["run_id"], entry["run"]
        entry["config"] = SQLiteStorage.get_run_config(project, name, run_id=run_id)
    for api, key, entries in (
        ("/bulk_log", "logs", logs),
        ("/bulk_log_system", "logs", SQLiteStorage.get_all_system_logs_for_sync(project)),
        ("/bulk_alert", "alerts", _rows(SQLiteStorage.query_project(project, _ALERTS))),
    ):
        wanted = [{**each, "project": project} for each in entries if each["run_id"] in lacking]
        for first in range(0, len(wanted), _MOST_ROWS):
            some = utils.to_json_safe(wanted[first : first + _MOST_ROWS])  # type: ignore[no-untyped-call]
            client.predict(api_name=api, **{key: some}, hf_token=None)
    if left := _lacking(client, project):
        raise TrackerError(f"it did not take every row of {len(left)} runs")


def _lacking(client: RemoteClient, project: str) -> set[str]:
    """Ids of the runs of which rows are missing there."""
    here = _rows(SQLiteStorage.query_project(project, _COUNTS))
    there: dict[str, int] = {}
    if project in client.predict(api_name="/get_all_projects"):
        found = client.predict(api_name="/query_project", project=project, query=_COUNTS)
        there = {row["run_id"]: row["found"] for row in _rows(found)}
    return {row["run_id"] for row in here if row["found"] > there.get(row["run_id"], 0)}


def _rows(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return list(answer["rows"])
