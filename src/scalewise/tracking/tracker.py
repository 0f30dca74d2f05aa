"""The interface of a tracker, and a cell in its words: name, group, tags, summary."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlparse

from scalewise.analysis import rehearsed_kind, swept_words
from scalewise.config import TrackingConfig
from scalewise.records import (
    Alert,
    CellFolder,
    CellResult,
    CurrentAttempt,
    DataError,
    PlannedCell,
    RecordError,
    SweepFolder,
    SweepPlan,
    build,
    load_or_none,
    to_plain,
)


class TrackerError(Exception):
    """A tracker that cannot do what it was asked, in one line."""


@dataclass(frozen=True)
class Row:
    kind: Literal["metrics", "system", "alert"]
    id: str
    """Its place in the records: the same row always has the same id."""
    time: float
    """Unix time."""
    step: int
    """Optimizer step; 0 for device readings."""
    values: Mapping[str, float]
    """Finite numbers by the names of the records. What is missing is left out, never zero."""
    alert: Alert | None = None
    """Present if and only if the kind is ``alert``, which has no values."""


@dataclass(frozen=True)
class RunInfo:
    """Identity of a run in every tracker."""

    run_id: str
    """The same each time the same attempt at the same cell is mirrored."""
    name: str
    group: str
    row: str
    """What its repeats and the other seeds of its configuration have in common with it."""
    tags: tuple[str, ...]
    folder: Path
    """Where a tracker that writes files may put its own folder."""
    config: Mapping[str, Any]
    """The cell's resolved configuration, and what scalewise knows beside it."""
    tracking: TrackingConfig


@dataclass(frozen=True)
class RunSummary:
    state: Literal["finished", "failed", "incomplete"]
    values: Mapping[str, float]
    """``summary/...`` to one number each; may be empty."""
    config: Mapping[str, Any]
    """Known only at the end: provenance, outcome."""


@dataclass(frozen=True)
class Answer:
    values: Mapping[str, float | str]
    """``<configuration>/speedup`` and the like."""
    page: str
    """Its verdicts and why, a Markdown list."""
    report: Path
    """The folder of the report."""


class TrackerRun(Protocol):
    """A run being mirrored. Every method may raise; the mirror says so and goes on without it."""

    @property
    def location(self) -> str:
        """Where a person finds the run."""

    def log(self, rows: Sequence[Row]) -> None:
        """Hand over rows, and let go of them."""

    def finish(self, summary: RunSummary) -> None:
        """Log the summary and close the run. Counts as one row if it has values."""

    def log_answer(self, answer: Answer) -> None:
        """Make this the run of a sweep's answer, and close it."""

    def read_back(self) -> int | None:
        """Rows of the run as the tracker counts them, without alerts; None where it does not.

        Raises :class:`TrackerError` where a run that lost no row is not where it was wanted.
        """


Tracker = Callable[[RunInfo], TrackerRun]
"""Begins a run in one place, or begins it again: rows it already holds are not doubled."""


def server_answers(url: str, timeout_s: float) -> bool:
    """Whether anybody listens at ``url``. Behind a proxy only who uses it can tell: True."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY")):
        return True
    parts = urlparse(url)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    return listens(parts.hostname or "", port, timeout_s)


def listens(host: str, port: int, timeout_s: float) -> bool:
    try:
        with socket.create_connection((host, port), timeout=timeout_s):
            return True
    except OSError:
        return False


@dataclass(frozen=True)
class SweepName:
    """What a sweep and its runs are called in the trackers."""

    began: str
    """When, as its folder says; of a folder that does not, as its plan does."""
    about: str
    """Its models, and the keys that were swept."""
    rows: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Of each cell, what its row is called, and which run of that it is."""

    @classmethod
    def of(cls, folder: SweepFolder, plan: SweepPlan) -> SweepName:
        match = _STAMP.match(folder.path.resolve().name)
        began = time.strftime("%m-%d %H:%M", time.localtime(plan.created_at))
        if match:
            began = "{}-{} {}:{}".format(*match.groups())
        models = sorted({planned.name.partition("-")[0] for planned in plan.cells})
        more = f",+{len(models) - _MOST_NAMED}" if len(models) > _MOST_NAMED else ""
        swept = swept_words(plan.cells)
        keys = {word.partition("=")[0]: None for words in swept.values() for word in words.split()}
        by = f" by {','.join([*keys][:_MOST_NAMED])}" if keys else ""
        return cls(
            began, ",".join(models[:_MOST_NAMED]) + more + by, _names_of_runs(plan.cells, swept)
        )

    def __str__(self) -> str:
        return f"{self.began} {self.about}".strip()

    def run(self, cell: str, attempt: int, earlier: int = 0) -> str:
        """The name of a try. Lists cut names at 28 letters: what differs most comes first.

        ``earlier`` results of the cell were set aside: their runs keep their names.
        """
        again = f" again {earlier}" if earlier else ""
        more = f" try {attempt}" if attempt > 1 else ""
        words = " ".join(filter(None, self.rows.get(cell, (cell,))))
        return f"{words}{again}{more} {self.began}"


def _names_of_runs(
    planned: Sequence[PlannedCell], swept: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """For each cell the model, what was swept, and what differs of the rest: ``net lr=0.1``.

    Then its seed and its repeat, and its id where no word tells it from another.
    """
    stems = {one.name: re.sub(r"-r\d+-[0-9a-f]+$", "", one.name).split("-") for one in planned}
    of_ours = [stem for stem in stems.values() if len(stem) == 3]  # model, dataset, strategy
    differ = [0, *(place for place in (1, 2) if len({stem[place] for stem in of_ours}) > 1)]
    found = {}
    for one in planned:
        stem, words = stems[one.name], swept[one.cell_id].split()
        parts = [stem[place] for place in differ] if len(stem) == 3 else [one.name]
        seeds = [word for word in words if word.startswith("seed=")]
        repeat = [f"r{one.repeat}"] if one.repeat and len(stem) == 3 else []
        row = " ".join([*parts, *(word for word in words if word not in seeds)])
        found[one.name] = (row, " ".join([*seeds, *repeat]))
    often = Counter(found.values())
    return {
        one.name: (row, which if often[row, which] == 1 else f"{which} {one.cell_id[:8]}".strip())
        for one in planned
        for row, which in (found[one.name],)
    }


_STAMP = re.compile(r"\d{4}-(\d\d)-(\d\d)_(\d\d)-(\d\d)-\d\d")
_MOST_NAMED = 3

_TAG_GROUPS = ("model", "dataset", "strategy", "precision", "execution", "optimizer", "experiment")


def tracking_of(config: Mapping[str, Any]) -> TrackingConfig:
    """The trackers of a cell. Raises RecordError for a choice that is not valid."""
    try:
        return build(TrackingConfig, config.get("tracking") or {}, "tracking")
    except DataError as error:
        raise RecordError(str(error)) from error


def run_info(
    cell: CellFolder, attempt: CurrentAttempt, planned: PlannedCell, sweep: Path, called: SweepName
) -> RunInfo:
    """Facts about a try at a cell that trackers get before its first row; RecordError as above."""
    config = cell.load_config()
    tracking = tracking_of(config)
    row, _ = called.rows.get(cell.name, (cell.name, ""))
    about = {"folder": str(cell.path.resolve()), "attempt": attempt.number, "row": row,
             **to_plain(planned)}  # fmt: skip
    identity = f"{cell.path.resolve()}\n{attempt.number}\n{attempt.stamp}"
    return RunInfo(
        run_id=hashlib.sha256(identity.encode()).hexdigest()[:12],
        name="rehearsed " * (rehearsed_kind(config) is not None)
        + called.run(cell.name, attempt.number, cell.replaced_results()),
        group=str(called),
        row=row,
        tags=_tags(config, tracking),
        folder=sweep,
        config={**config, "cell": about, **_provenance(cell)},
        tracking=tracking,
    )


def run_summary(
    cell: CellFolder, attempt: CurrentAttempt, global_samples_per_s: float | None
) -> RunSummary:
    """How the try ended, from its records and the throughput of its timed steps."""
    values: dict[str, float] = {}
    ranks = attempt.result.ranks if attempt.result is not None else ()
    if global_samples_per_s is not None and all(one.is_counted for one in ranks):
        values["summary/global_samples_per_s"] = global_samples_per_s
    outcome: dict[str, Any] = {"state": "incomplete"}
    used: dict[str, Any] = {}
    if attempt.result is not None:
        values |= _result_values(attempt.result)
        own = attempt.result.ranks[0].own_optimizer
        if own is not None:
            used = {"optimizer": {"name": f"its own ({own})"}}
        outcome = {
            "state": "finished",
            "attempts": attempt.result.attempt,
            "co_tenants": list(attempt.result.co_tenants),
        }
    elif attempt.failure is not None:
        outcome = {
            "state": "failed",
            **{k: getattr(attempt.failure, k) for k in ("outcome", "cause", "rank", "message")},
        }
    return RunSummary(outcome["state"], values, {"outcome": outcome, **used, **_provenance(cell)})


def _result_values(result: CellResult) -> dict[str, float]:
    """Figures of the whole run. What was logged is there as curves, under its own names."""
    lead = result.ranks[0]
    peaks = [r.peak_allocated_mib for r in result.ranks]
    values: dict[str, float | None] = {
        "parameters_total": lead.parameters_total,
        "parameters_trainable": lead.parameters_trainable,
        "world_size": result.world_size,
        "global_batch_size": result.global_batch_size,
        "per_device_batch_size": result.per_device_batch_size,
        "samples_fed": sum(r.samples_fed for r in result.ranks),
        "steps_completed": lead.steps_completed,
        "duration_s": result.elapsed_s,
        "peak_allocated_mib": max((p for p in peaks if p is not None), default=None),
        "peak_rss_mib": max(r.peak_rss_mib for r in result.ranks),
    }
    return {f"summary/{name}": float(v) for name, v in values.items() if v is not None}


def _provenance(cell: CellFolder) -> dict[str, Any]:
    found = load_or_none(cell.load_provenance)
    return {} if found is None else {"provenance": to_plain(found)}


def _tags(config: Mapping[str, Any], tracking: TrackingConfig) -> tuple[str, ...]:
    model = config.get("model")
    target = model.get("_target_") if isinstance(model, Mapping) else None
    # A user's class may be a LightningModule with an optimizer of its own, and a tag cannot be
    # taken back once the module has built it.
    own = isinstance(target, str) and not target.startswith("scalewise.")
    tags = ["rehearsed"] if rehearsed_kind(config) else []
    for group in _TAG_GROUPS:
        chosen = None if group == "optimizer" and own else config.get(group)
        if isinstance(chosen, Mapping):
            # A user's own class has no name but the last part of its path.
            chosen = chosen.get("name") or str(chosen.get("_target_") or "").rpartition(".")[2]
        if isinstance(chosen, str) and chosen:
            tags.append(chosen)
    if isinstance(config.get("scaling"), str):
        tags.append(f"{config['scaling']} scaling")
    return tuple(dict.fromkeys([*tags, *tracking.tags]))
