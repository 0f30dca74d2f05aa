"""Looking at what was mirrored: the Trackio dashboard, and uploading WandB's offline runs."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from scalewise.config import ConfigError
from scalewise.host import say, tell
from scalewise.tracking.tracker import listens


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
    import trackio
    from trackio.utils import TRACKIO_DIR

    if not (TRACKIO_DIR / f"{project}.db").exists():
        found = sorted(path.stem for path in TRACKIO_DIR.glob("*.db"))
        raise ConfigError(
            f"project: found {project!r}; in {TRACKIO_DIR} there is: {', '.join(found) or 'none'}"
        )
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            _, _, _, full_url = trackio.show(
                project=project, host=host, server_port=port, open_browser=False, block_thread=False
            )
    except OSError as error:
        raise ConfigError(f"port {port}: {error}; is the dashboard running at {url}?") from error
    tell(f"Trackio dashboard: {full_url}")
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()


def upload_offline(folders: Sequence[Path]) -> bool:
    """Upload the offline WandB runs of sweep (or cell) folders that are not uploaded yet.

    True if all of them are on the server afterwards. Raises :class:`ConfigError` for a folder that
    is none, or if nobody is logged in.
    """
    from scalewise.tracking.wandb import logged_in

    missing = [str(folder) for folder in folders if not folder.is_dir()]
    if missing:
        raise ConfigError(f"FOLDER: {', '.join(missing)}: no such folder")
    logs = [log for folder in folders for log in sorted(folder.glob("**/offline-run-*/*.wandb"))]
    waiting = [log for log in logs if not _is_synced(log)]
    if not waiting:
        tell(f"nothing to upload: {len(logs)} offline runs, all of them uploaded")
        return True
    if not logged_in():
        raise ConfigError("not logged in to WandB: run `wandb login` or set WANDB_API_KEY")
    command = [sys.executable, "-m", "wandb", "sync", *(str(log.parent) for log in waiting)]
    status = subprocess.run(command, check=False).returncode
    left = [log.parent for log in waiting if not _is_synced(log)]
    for folder in left:
        tell(f"not uploaded: {folder}")
    tell(f"uploaded {len(waiting) - len(left)} of {len(waiting)} runs")
    return not left and not status


def _is_synced(log: Path) -> bool:
    # WandB leaves this file beside the log once the server has all of it.
    return log.with_name(f"{log.name}.synced").exists()
