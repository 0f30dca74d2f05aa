"""Runs mirrored to WandB: offline by default, which needs no account and no network.

WandB drops a row whose step is lower than the last one's, and metrics, device readings and
summaries arrive interleaved. So no step is given to WandB: each series names its own x-axis,
``step`` for metrics and ``gpu/time`` for devices.
"""

from __future__ import annotations

import netrc
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from time import sleep
from time import time as now
from typing import Literal
from urllib.parse import urlparse

import wandb

from scalewise.config import TrackingConfig
from scalewise.tracking.tracker import (
    Answer,
    Row,
    RunInfo,
    RunSummary,
    TrackerError,
    server_answers,
)

_CONNECT_S = 5.0
_SETTLE_S = 10.0
"""How long rows that were accepted may take to be found."""
_NO_WAIT_S = 0.001
"""0 would mean WandB's default of a minute."""
_DEFAULT_HOST = "api.wandb.ai"


def resolve_mode(config: TrackingConfig) -> Literal["offline", "online", "disabled"]:
    """``WANDB_MODE``, else what the configuration says, else online only for who is logged in."""
    environment = os.environ.get("WANDB_MODE", "").lower()
    if environment in ("disabled", "dryrun"):
        return "disabled" if environment == "disabled" else "offline"
    mode = environment if environment in ("offline", "online") else config.wandb_mode
    if mode == "auto":
        return "online" if logged_in() else "offline"
    return "online" if mode == "online" else "offline"


def logged_in() -> bool:
    """Whether WandB would find an API key: in the environment, or for its host in netrc."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "")).hostname or _DEFAULT_HOST
    path = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    try:
        return netrc.netrc(path).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


class WandbTracker:
    """A WandB account, or the folder ``wandb`` beside the cells."""

    def __init__(self) -> None:
        self._server_is_away: bool | None = None
        """None until it was asked for."""

    def start_run(self, info: RunInfo) -> WandbRun:
        mode = resolve_mode(info.tracking)
        if mode == "disabled":
            raise TrackerError(
                "WANDB_MODE=disabled; unset it, or choose tracking=trackio to leave WandB out"
            )
        # What a mirror that was killed left of this run: an offline run cannot be resumed, and the
        # records hold every row of it.
        for unfinished in (info.folder / "wandb").glob(f"offline-run-*-{info.run_id}"):
            shutil.rmtree(unfinished)
        # Asked before WandB is: a run that failed to start online keeps its id in use, so that it
        # cannot be started offline instead.
        if mode == "online" and self._server_is_away is None:
            url = str(wandb.setup().settings.base_url)
            self._server_is_away = not server_answers(url, _CONNECT_S)
        # What is offline can be uploaded later; nothing is lost but the time until then.
        away = mode == "online" and bool(self._server_is_away)
        used: Literal["offline", "online"] = "offline" if away else mode
        try:
            return WandbRun(_init(info, used), used, away=away)
        except wandb.errors.CommError:
            # The runs after this one need not wait as long for it.
            self._server_is_away = True
            raise


def _init(info: RunInfo, mode: Literal["offline", "online"]) -> wandb.Run:
    return wandb.init(
        project=info.tracking.project,
        entity=info.tracking.entity,
        id=info.run_id,
        name=info.name,
        group=info.group,
        job_type=info.row,
        # WandB takes tags of 1 to 64 characters.
        tags=[tag[:64] for tag in info.tags if tag],
        dir=info.folder,
        config=dict(info.config),
        mode=mode,
        # Not resumed but overwritten: after a mirror was killed, rows of the different series come
        # in another order, so nobody could tell which of them the server lacks.
        resume=None,
        reinit="create_new",
        settings=wandb.Settings(
            console="off",
            silent=True,
            init_timeout=20,
            # The records hold all of this already, and WandB's own statistics would be of
            # this process, or of GPUs that are not the cell's.
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            disable_git=True,
            disable_code=True,
        ),
    )


class WandbRun:
    def __init__(
        self, run: wandb.Run, mode: Literal["offline", "online"], *, away: bool = False
    ) -> None:
        self._away = away
        self._run = run
        self._mode = mode
        self._log_file = Path(str(run.settings.sync_file))
        self._rows = 0
        self._last_step = 0
        self._known: set[str] = set()
        """Names that WandB was told the x-axis of."""

    @property
    def location(self) -> str:
        return (self._run.url if self._mode == "online" else None) or str(self._log_file.parent)

    def log(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.alert is not None:
                # Each is told once, so none of them has to wait for an earlier one.
                level = row.alert.level.upper()
                self._run.alert(row.alert.title, row.alert.text, level, wait_duration=_NO_WAIT_S)
                continue
            self._rows += 1
            self._last_step = max(self._last_step, row.step)
            is_step = row.kind == "metrics"
            axis, at = ("step", float(row.step)) if is_step else ("gpu/time", row.time)
            for key in (axis, *row.values):
                if key not in self._known:
                    self._known.add(key)
                    own = {"hidden": True} if key == axis else {"step_metric": axis}
                    self._run.define_metric(key, **own)
            self._run.log({**row.values, axis: at, "_timestamp": row.time})

    def finish(self, summary: RunSummary) -> None:
        config = dict(summary.config)
        self._run.config.update(config, allow_val_change=True)  # type: ignore[no-untyped-call]
        if summary.values:
            self.log([Row("metrics", "summary", now(), self._last_step, summary.values)])
        self._run.finish(exit_code=0 if summary.state == "finished" else 1)

    def log_answer(self, answer: Answer) -> None:
        self._run.summary.update(dict(answer.values))
        report = wandb.Artifact(f"report-{self._run.id}", "report")
        report.add_dir(str(answer.report))
        self._run.log_artifact(report)
        self._run.finish(exit_code=0)

    def read_back(self) -> int | None:
        """Rows that the server has; None offline, where nobody counts before the upload.

        The server may take some time after ``finish`` has returned.
        """
        if self._away:
            raise TrackerError(
                "the server cannot be reached; written offline: upload it with wandb sync"
            )
        if self._mode == "offline":
            return None
        deadline = now() + _SETTLE_S
        while (count := self._count()) != self._rows and now() < deadline:
            sleep(0.2)
        return count

    def _count(self) -> int:
        # Every row took one step of WandB's own, counted from 0.
        return int(wandb.Api(timeout=10).run(str(self._run.path)).lastHistoryStep) + 1
