"""Looking at what was mirrored: the Trackio dashboard, and uploading WandB's offline runs."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from scalewise.config import TrackingConfig

_PORT = 7860


def main_view(argv: Sequence[str]) -> int:
    """Start the Trackio dashboard and print its full URL; with ``--url-only`` print where it is.

    The full URL carries the token that allows renaming and deleting runs. Exit status 2 if the
    project does not exist or the port is taken.
    """
    arguments = _view_arguments(argv)
    project: str = arguments.project
    url = f"http://{arguments.host}:{arguments.port}/?project={quote(project)}"
    if arguments.url_only:
        _say(url)
        if not _somebody_listens(arguments.host, arguments.port):
            start = f"scalewise trackio-view --project {project}"
            _complain(f"nothing listens there: start it with {start}")
        return 0
    import trackio
    from trackio.utils import TRACKIO_DIR

    if not (TRACKIO_DIR / f"{project}.db").exists():
        found = sorted(path.stem for path in TRACKIO_DIR.glob("*.db"))
        return _refuse(
            f"project: found {project!r}; in {TRACKIO_DIR} there is: {', '.join(found) or 'none'}"
        )
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            _, _, _, full_url = trackio.show(
                project=project,
                host=arguments.host,
                server_port=arguments.port,
                open_browser=False,
                block_thread=False,
            )
    except OSError as error:
        return _refuse(f"port {arguments.port}: {error}; is the dashboard running at {url}?")
    _say(f"Trackio dashboard: {full_url}")
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
    return 0


def main_sync(argv: Sequence[str]) -> int:
    """Upload the offline WandB runs of sweep (or cell) folders that are not uploaded yet.

    Exit status 1 if any of them is not on the server afterwards, 2 if nobody is logged in.
    """
    parser = argparse.ArgumentParser(prog="scalewise wandb-sync", description=main_sync.__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    folders: list[Path] = parser.parse_args(argv).folders
    from scalewise.tracking.wandb import logged_in

    missing = [str(folder) for folder in folders if not folder.is_dir()]
    if missing:
        return _refuse(f"FOLDER: {', '.join(missing)}: no such folder")
    logs = [log for folder in folders for log in sorted(folder.glob("**/offline-run-*/*.wandb"))]
    waiting = [log for log in logs if not _is_synced(log)]
    if not waiting:
        _say(f"nothing to upload: {len(logs)} offline runs, all of them uploaded")
        return 0
    if not logged_in():
        return _refuse("not logged in to WandB: run `wandb login` or set WANDB_API_KEY")
    command = [sys.executable, "-m", "wandb", "sync", *(str(log.parent) for log in waiting)]
    status = subprocess.run(command, check=False).returncode
    left = [log.parent for log in waiting if not _is_synced(log)]
    for folder in left:
        _say(f"not uploaded: {folder}")
    _say(f"uploaded {len(waiting) - len(left)} of {len(waiting)} runs")
    return 1 if left or status else 0


def _is_synced(log: Path) -> bool:
    # WandB leaves this file beside the log once the server has all of it.
    return log.with_name(f"{log.name}.synced").exists()


def _somebody_listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def _view_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scalewise trackio-view", description=main_view.__doc__)
    parser.add_argument("--project", default=TrackingConfig.project)
    parser.add_argument("--host", default="127.0.0.1")
    default_port = int(os.environ.get("GRADIO_SERVER_PORT", _PORT))
    parser.add_argument("--port", type=int, default=default_port)
    parser.add_argument("--url-only", action="store_true", help="print the URL, start nothing")
    return parser.parse_args(argv)


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a command's output


def _complain(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201 - a command's error


def _refuse(problem: str) -> int:
    _complain(f"error: {problem}")
    return 2
