"""The JSON records of one cell, and where everything of a cell lies."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from scalewise.records.files import (
    SCHEMA_VERSION,
    RecordError,
    load_json,
    save_json,
    write_atomically,
)
from scalewise.typed import to_plain

__all__ = [
    "SCHEMA_VERSION",
    "Attempt",
    "Cause",
    "CellFolder",
    "CellResult",
    "DeviceInfo",
    "Provenance",
    "RankError",
    "RankSummary",
    "RecordError",
    "RunningAttempt",
    "TrackerState",
    "TrackingRecord",
]


@dataclass(frozen=True)
class DeviceInfo:
    """The device one rank ran on."""

    kind: Literal["cuda", "cpu"]
    """What computed."""
    name: str
    """``NVIDIA H200``, or the processor's model name."""
    uuid: str | None = None
    """The GPU's UUID; None on a CPU host."""
    index: int | None = None
    """NVML's index of the GPU on its host; None on a CPU host."""
    cores: tuple[int, ...] = ()
    """The CPU cores the rank was bound to."""
    memory_total_mib: float | None = None
    """The GPU's memory; None on a CPU host."""


@dataclass(frozen=True)
class Provenance:
    """What a result depends on beside its configuration."""

    command: tuple[str, ...]
    host: str
    """The host name, hashed: enough to tell hosts apart, not enough to name them."""
    platform: str
    python: str
    packages: Mapping[str, str]
    """Distribution name to version."""
    code: Mapping[str, Any]
    """``commit``, ``dirty`` and ``diff_sha256`` of the working tree the run started from."""
    devices: tuple[DeviceInfo, ...]
    """One for each local rank."""
    driver: str | None
    cuda: str | None
    nccl: str | None
    environment: Mapping[str, str]
    """NCCL_*, TORCH_*, OMP_* and their like, as the ranks saw them."""
    usable_cores: int
    memory_limit_mib: float | None
    """The cgroup's memory limit; None where there is none."""
    emulated: tuple[str, ...] = ()
    """What was made to look different from what it is, e.g. ``NCCL_P2P_DISABLE=1``."""
    topology: Mapping[str, str] = field(default_factory=dict)
    """Link kind for each pair of GPUs, ``"0-1": "NV18"``."""
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    """Data sheet rate of one device for each precision; empty where no profile describes it."""
    peak_source: str | None = None
    """The document and date those rates are from."""


@dataclass(frozen=True)
class RankSummary:
    """What one rank did, counted while it ran. None is "not known", never zero."""

    rank: int
    local_rank: int
    pid: int
    device: DeviceInfo
    parameters_total: int
    """Counted from the live module."""
    parameters_trainable: int
    steps_completed: int
    """Optimizer steps, warm-up included."""
    samples_fed: int
    """Samples this rank fed to its replica, warm-up included."""
    epochs_completed: int
    gradient_bytes: int | None
    """Bytes reduced in one step under DDP; None where nothing is reduced."""
    gradient_buckets: int | None
    flops_per_sample: float | None
    """The model's declared count, forward and backward of one sample; None if it declares none."""
    peak_allocated_mib: float | None
    """The CUDA allocator's peak; None on a CPU host."""
    peak_reserved_mib: float | None
    allocation_retries: int | None
    peak_rss_mib: float
    """Peak resident set of this process."""
    metrics: Mapping[str, float | None]
    """The last value of each metric; None is "not a finite number"."""
    step_rows: int
    metric_rows: int
    missing: Mapping[str, str] = field(default_factory=dict)
    """Series that could not be taken, and why."""
    run_queue_ms_per_step: float | None = None
    """Mean ms a timed step in which the training thread was ready to run and had no core."""


@dataclass(frozen=True)
class RankError:
    """What a rank died of, written by the rank itself before it goes."""

    rank: int
    time: float
    """Unix time at which the error surfaced: the earliest rank is the culprit."""
    kind: Literal["exception", "oom", "config", "disk"]
    message: str
    """One line."""
    traceback: str


@dataclass(frozen=True)
class RunningAttempt:
    """A try under way. Its file is touched every second or so while its supervisor lives."""

    number: int
    """Counted from 1."""
    started_at: float
    """Unix time."""
    devices: tuple[DeviceInfo, ...]
    """One a rank."""


Cause = Literal[
    "exception",
    "oom",
    "signal",
    "exit",
    "timeout",
    "hang",
    "config",
    "disk",
    "host",
    "supervisor",
    "interrupted",
]
"""What a try ended of."""


@dataclass(frozen=True)
class Attempt:
    """A try that did not end in a result."""

    number: int
    outcome: Literal["failed", "skipped", "interrupted"]
    cause: Cause
    message: str
    """One line: what happened, and where to look."""
    rank: int | None
    """The rank that failed first; None when no rank is to blame."""
    exit_code: int | None
    """That rank's exit status; negative for the signal that ended it."""
    last_lines: tuple[str, ...]
    """The end of that rank's stderr."""
    started_at: float
    finished_at: float


@dataclass(frozen=True)
class CellResult:
    """A finished cell. It is written last, and only when every rank ended well."""

    cell_id: str
    """Hash of the requested configuration that determines the result, repeat included."""
    config_id: str
    """The same without the repeat: cells that share it are repeats of one another."""
    name: str
    repeat: int
    attempt: int
    """How many tries it took, counted from 1."""
    started_at: float
    """Unix time."""
    finished_at: float
    world_size: int
    strategy: str
    scaling: Literal["strong", "weak"]
    global_batch_size: int
    per_device_batch_size: int
    objective: float | None
    """What a sweeper minimises or maximises; None if the objective was not measured."""
    co_tenants: tuple[str, ...]
    """Cells and foreign processes that shared the host while this one ran."""
    ranks: tuple[RankSummary, ...]


@dataclass(frozen=True)
class TrackerState:
    """What one tracker was given, and what it gave back."""

    status: Literal["synced", "incomplete", "failed"]
    handed_over: int
    """Rows logged to it."""
    read_back: int | None
    """Rows found when it was read again at the end; None if it could not be read."""
    location: str
    """Project and run, folder or URL: where a person finds it."""
    problem: str | None = None
    """What went wrong, in one line."""


@dataclass(frozen=True)
class TrackingRecord:
    """How the mirrors of a cell stand."""

    trackers: Mapping[str, TrackerState]
    """``trackio`` and ``wandb``."""
    attempt: int = 1
    """The try that was mirrored, counted from 1."""
    alerts: tuple[str, ...] = ()
    """Titles of the alerts that were handed over, each said once."""


class CellFolder:
    """Where the records of one cell lie, and how they are read and written."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"CellFolder({str(self.path)!r})"

    @property
    def name(self) -> str:
        return self.path.name

    def steps_path(self, rank: int) -> Path:
        return self.path / "steps" / f"rank{rank}.bin"

    def metrics_path(self, rank: int) -> Path:
        return self.path / "metrics" / f"rank{rank}.jsonl"

    def shard_path(self, rank: int) -> Path:
        return self.path / "audit" / f"rank{rank}.npz"

    def heartbeat_path(self, rank: int) -> Path:
        return self.path / "heartbeat" / f"rank{rank}"

    def log_path(self, rank: int, stream: Literal["out", "err"]) -> Path:
        return self.path / "logs" / f"rank{rank}.{stream}"

    def device_series_path(self, host: str) -> Path:
        return self.path / "gpu" / f"{host}.jsonl"

    def device_series_paths(self) -> list[Path]:
        return sorted((self.path / "gpu").glob("*.jsonl"))

    def ranks_with_steps(self) -> list[int]:
        """Ranks that left step records, in order."""
        return sorted(
            int(p.stem.removeprefix("rank")) for p in (self.path / "steps").glob("rank*.bin")
        )

    # Configuration and provenance

    def save_config(self, config: Mapping[str, Any]) -> None:
        text = yaml.safe_dump(to_plain(config), sort_keys=False, allow_unicode=True)
        write_atomically(self.path / "config.yaml", text.encode())

    def load_config(self) -> dict[str, Any]:
        path = self.path / "config.yaml"
        try:
            config = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise RecordError(f"{path}: cannot be read: {error}") from error
        if not isinstance(config, dict):
            raise RecordError(f"{path}: found {type(config).__name__}; a mapping was expected")
        return config

    def save_provenance(self, provenance: Provenance) -> None:
        save_json(self.path / "provenance.json", provenance)

    def load_provenance(self) -> Provenance:
        return load_json(self.path / "provenance.json", Provenance)

    # What the ranks leave

    def save_rank(self, summary: RankSummary) -> None:
        save_json(self.path / "ranks" / f"rank{summary.rank}.json", summary)

    def load_rank(self, rank: int) -> RankSummary:
        return load_json(self.path / "ranks" / f"rank{rank}.json", RankSummary)

    def save_rank_error(self, error: RankError) -> None:
        save_json(self.path / "ranks" / f"rank{error.rank}.err", error)

    def load_rank_error(self, rank: int) -> RankError | None:
        path = self.path / "ranks" / f"rank{rank}.err"
        return load_json(path, RankError) if path.exists() else None

    def clear_attempt(self) -> None:
        """Make room for another try: what the last one recorded goes, its logs are kept."""
        for name in ("steps", "metrics", "audit", "ranks", "gpu", "heartbeat"):
            if (self.path / name).exists():
                shutil.rmtree(self.path / name)
        # A torn or foreign result would otherwise stand beside the new records.
        (self.path / "result.json").unlink(missing_ok=True)
        logs = self.path / "logs"
        if logs.exists():
            self._keep_logs(logs, self.next_attempt_number() - 1)

    def set_aside(self) -> Path:
        """Move everything of a finished run to ``earlier/<n>``, so that the cell can run again."""
        earlier = self.path / "earlier"
        numbers = [int(p.name) for p in earlier.glob("*") if p.name.isdecimal()]
        kept = earlier / str(max(numbers, default=0) + 1)
        kept.mkdir(parents=True)
        # The result goes first: without it, what is left behind by a crash is no finished cell.
        names = ["result.json", *sorted(p.name for p in self.path.iterdir())]
        for name in dict.fromkeys(names):
            if name not in ("earlier", "attempts") and (self.path / name).exists():
                (self.path / name).rename(kept / name)
        return kept

    def _keep_logs(self, logs: Path, attempt: int) -> None:
        kept = self.path / "attempts" / f"{attempt}.logs"
        if attempt == 0 or kept.exists():
            # Of a try that nobody recorded (killed with its supervisor, its port taken by another
            # process): no attempt refers to them.
            shutil.rmtree(logs)
        else:
            logs.rename(kept)

    # How it ended

    def save_result(self, result: CellResult) -> None:
        save_json(self.path / "result.json", result)

    def load_result(self) -> CellResult:
        return load_json(self.path / "result.json", CellResult)

    def is_done(self) -> bool:
        """A cell is done if and only if its result can be read."""
        try:
            self.load_result()
        except RecordError:
            return False
        return True

    def save_attempt(self, attempt: Attempt) -> None:
        save_json(self.path / "attempts" / f"{attempt.number}.json", attempt)

    def attempts(self) -> Iterator[Attempt]:
        """Tries that failed, oldest first."""
        for path in sorted((self.path / "attempts").glob("*.json"), key=lambda p: int(p.stem)):
            yield load_json(path, Attempt)

    def next_attempt_number(self) -> int:
        numbers = [int(p.stem) for p in (self.path / "attempts").glob("*.json")]
        return max(numbers, default=0) + 1

    # While it runs

    def save_running(self, running: RunningAttempt) -> None:
        save_json(self._running_path, running)

    def load_running(self) -> RunningAttempt | None:
        """The try under way, or the last one that nobody lived to record."""
        try:
            return load_json(self._running_path, RunningAttempt)
        except RecordError:
            return None

    def beat(self) -> None:
        """Say that the try under way is alive."""
        os.utime(self._running_path)

    def clear_running(self) -> None:
        self._running_path.unlink(missing_ok=True)

    def last_beat(self) -> float | None:
        """Unix time at which a try under way was last alive; None where none is."""
        try:
            return self._running_path.stat().st_mtime
        except FileNotFoundError:
            return None

    @property
    def _running_path(self) -> Path:
        return self.path / "running.json"

    def save_tracking(self, record: TrackingRecord) -> None:
        save_json(self.path / "tracking.json", record)

    def load_tracking(self) -> TrackingRecord | None:
        path = self.path / "tracking.json"
        return load_json(path, TrackingRecord) if path.exists() else None
