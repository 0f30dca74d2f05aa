"""The folders of a sweep and its cells: JSON records, series and logs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeInt

from scalewise.records.files import (
    FileName,
    RecordError,
    UnixTime,
    WorldSize,
    load_json,
    load_optional,
    load_or_none,
    read_plain,
    reason,
    save_json,
    write_atomically,
)
from scalewise.records.model import (
    CellResult,
    Ending,
    Provenance,
    RankSummary,
    RunningAttempt,
    TrackingRecord,
)
from scalewise.records.redaction import redacted, redacted_words, without_secrets
from scalewise.records.validation import DataError, build, to_plain

ALIVE_S = 15.0
"""A supervisor gives a sign of life every second: after this long without, it is gone."""
_ATTEMPT_FOLDERS = (
    "steps", "metrics", "audit", "ranks", "gpu", "heartbeat", "profile", "callbacks",
)  # fmt: skip
"""Folders that each attempt fills anew."""
_WITHOUT_RESULT = ("failed", "skipped", "interrupted")


class CellFolder:
    """The records of one cell: their paths, and how they are read and written."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.name = self.path.name
        self.callbacks_path = self.path / "callbacks"
        """Where callbacks of the user's write: the Trainer's ``default_root_dir``."""
        self.profile_path = self.path / "profile"
        """Folder of profiler traces; see :func:`~scalewise.records.load_profiles`."""
        self.queued_path = self.path / "queued"
        """Touched when a cell is to have one more try; gone once that has ended."""
        self._running_path = self.path / "running.json"

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
        return [rank for rank, _ in numbered_files(self.path / "steps", "rank", ".bin")]

    def ranks_with_metrics(self) -> list[int]:
        """Ranks that left metrics, in order."""
        return [rank for rank, _ in numbered_files(self.path / "metrics", "rank", ".jsonl")]

    # Configuration and provenance

    def save_config(self, config: Mapping[str, Any]) -> None:
        import yaml

        text = yaml.safe_dump(redacted(to_plain(config)), sort_keys=False, allow_unicode=True)
        write_atomically(self.path / "config.yaml", text.encode())

    def load_config(self) -> dict[str, Any]:
        import yaml  # a supervisor reads no configuration, and starts faster without it

        path = self.path / "config.yaml"
        try:
            return build(dict[str, Any], _load_yaml(read_plain(path).decode()))
        except DataError as error:
            raise RecordError(f"{path}: {error}") from None
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise RecordError(f"{path}: cannot be read: {reason(error)}") from error

    def save_provenance(self, provenance: Provenance, *, amended: bool = False) -> None:
        """``amended``: of the attempt that wrote the one there, and began when that was written."""
        command, path = redacted_words(provenance.command), self.path / "provenance.json"
        began_ns = path.stat().st_mtime_ns if amended else None
        save_json(path, replace(provenance, command=command), began_ns)

    def load_provenance(self) -> Provenance:
        return load_json(self.path / "provenance.json", Provenance)

    # Ranks

    def save_rank(self, summary: RankSummary) -> None:
        save_json(self.path / "ranks" / f"rank{summary.rank}.json", summary)

    def load_rank(self, rank: int) -> RankSummary:
        return load_json(self.path / "ranks" / f"rank{rank}.json", RankSummary)

    def save_rank_error(self, ending: Ending) -> None:
        save_json(self.path / "ranks" / f"rank{ending.rank}.err", _without_secrets(ending))

    def load_rank_error(self, rank: int) -> Ending | None:
        return load_optional(self.path / "ranks" / f"rank{rank}.err", Ending)

    def clear_attempt(self) -> None:
        """Move the records of an earlier try to ``earlier/<n>``, and its logs to its record.

        They may be of a run that ended: of a result that is torn, gone, or of another cell.
        """
        attempt = self.next_attempt_number() - 1
        logs, kept = self.path / "logs", self.path / "attempts" / f"{attempt}.logs"
        if logs.exists() and attempt and not self.has_result_file() and not kept.exists():
            logs.rename(kept)
        names = (*_ATTEMPT_FOLDERS, "logs", "result.json")
        if any(os.path.lexists(self.path / name) for name in names):
            self.move_to_earlier(names)

    def set_aside(self) -> Path:
        """Move everything of a run to ``earlier/<n>``, so that the cell can run again."""
        kept = ("earlier", "attempts", "result.json")
        names = sorted(path.name for path in self.path.iterdir() if path.name not in kept)
        return self.move_to_earlier((*names, "result.json"))

    def move_to_earlier(self, names: Iterable[str]) -> Path:
        """Move files and folders of the cell to a new ``earlier/<n>``, in the order of ``names``.

        The result has to come last: while it is there, the logs are those of the run that ended.
        """
        earlier = self.path / "earlier"
        numbers = [int(p.name) for p in earlier.glob("*") if p.name.isdecimal()]
        kept = earlier / str(max(numbers, default=0) + 1)
        kept.mkdir(parents=True)
        for name in names:
            if os.path.lexists(self.path / name):
                (self.path / name).rename(kept / name)
        return kept

    # Result and attempts

    def save_result(self, result: CellResult) -> None:
        save_json(self.path / "result.json", result)

    def load_result(self, cell_id: str | None = None) -> CellResult:
        """The result. Raises :class:`RecordError`, also if it is of another cell."""
        result = load_json(self.path / "result.json", CellResult)
        if cell_id not in (None, result.cell_id):
            raise RecordError(
                f"{self.path / 'result.json'}: result of cell {result.cell_id}; "
                f"that of cell {cell_id} was expected"
            )
        return result

    def has_result_file(self) -> bool:
        """Whether a result was written, be it damaged since, or a link that leads nowhere."""
        return os.path.lexists(self.path / "result.json")

    def replaced_results(self) -> int:
        """How many results were set aside, whatever made them so."""
        folders = (CellFolder(path) for path in (self.path / "earlier").glob("*"))
        return sum(one.has_result_file() for one in folders if one.name.isdecimal())

    def find_result(self, cell_id: str | None = None) -> CellResult | None:
        """The result; None if it is missing, damaged or of another cell than ``cell_id``."""
        return load_or_none(self.load_result, cell_id)

    def is_done(self, cell_id: str | None = None) -> bool:
        """A cell is done if and only if its result can be read, and is this cell's."""
        return self.find_result(cell_id) is not None

    def save_attempt(self, ending: Ending) -> Ending:
        """Record how a try without a result ended, with the next number if it has none."""
        number = ending.number or self.next_attempt_number()
        ending = replace(_without_secrets(ending), number=number)
        save_json(self.path / "attempts" / f"{ending.number}.json", ending)
        return ending

    def attempts(self) -> Iterator[Ending]:
        """How tries without a result ended, oldest first."""
        for number, path in numbered_files(self.path / "attempts", "", ".json"):
            ending = load_json(path, Ending)
            if ending.outcome not in _WITHOUT_RESULT:
                raise RecordError(f"{path}: found outcome {ending.outcome} of a try without result")
            yield replace(ending, number=number)

    def find_log(self, ending: Ending) -> Path | None:
        """What the rank that ended a try said last, wherever a later try has moved it.

        Standard error, or standard output where it has nothing. None for a cell that did not run,
        or is done.
        """
        if ending.outcome not in ("failed", "interrupted"):
            return None
        name = f"rank{ending.rank or 0}.err"
        logs = (self.path / "attempts" / f"{ending.number}.logs" / name, self.path / "logs" / name)
        for err in filter(Path.exists, logs):
            out = err.with_suffix(".out")
            return out if not err.stat().st_size and out.exists() and out.stat().st_size else err
        return None

    def next_attempt_number(self) -> int:
        numbers = [number for number, _ in numbered_files(self.path / "attempts", "", ".json")]
        return max(numbers, default=0) + 1

    def is_queued_again(self) -> bool:
        """Whether it is to have one more try, which has not begun, nor did a later one."""
        ended = [path for _, path in numbered_files(self.path / "attempts", "", ".json")]
        tries = (_changed_at(path) or 0.0 for path in (*ended, self._running_path))
        queued = _changed_at(self.queued_path)
        return queued is not None and queued >= max(tries)

    # The attempt under way

    def save_running(self, running: RunningAttempt) -> None:
        save_json(self._running_path, running)

    def find_running_attempt(self) -> RunningAttempt | None:
        """The attempt under way, or a last one without a record; None if missing or damaged."""
        return load_or_none(self.load_running)

    def load_running(self) -> RunningAttempt | None:
        """As :meth:`find_running_attempt`, but raises :class:`RecordError` if it is damaged."""
        return load_optional(self._running_path, RunningAttempt)

    def beat(self) -> None:
        """Record that the attempt under way is alive."""
        os.utime(self._running_path)

    def clear_running(self) -> None:
        self._running_path.unlink(missing_ok=True)

    def last_beat(self) -> float | None:
        """Unix time at which the attempt under way was last alive; None if there is none."""
        return _changed_at(self._running_path)

    def save_tracking(self, record: TrackingRecord) -> None:
        save_json(self.path / "tracking.json", record)

    def load_tracking(self) -> TrackingRecord | None:
        return load_optional(self.path / "tracking.json", TrackingRecord)


def _changed_at(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def _without_secrets(ending: Ending) -> Ending:
    lines = tuple(map(without_secrets, ending.last_lines))
    return replace(ending, message=without_secrets(ending.message), last_lines=lines)


_MOST_BY_C = 10_000
"""Characters of a configuration: ours have two thousand."""
_MOST_VALUES = 1_000_000


def _load_yaml(text: str) -> Any:
    import yaml

    # Ten times as fast where it was built; nested 20,000 deep it ends the process.
    fast = len(text) < _MOST_BY_C and getattr(yaml, "CSafeLoader", None)
    try:
        config = yaml.load(text, fast or yaml.SafeLoader)
        if _written_out(config, {}) <= _MOST_VALUES:
            return config
    except RecursionError:
        pass
    raise ValueError(f"found values nested deeply; allowed: {_MOST_VALUES:,} without aliases")


def _written_out(value: Any, known: dict[int, int]) -> int:
    """How many values it would have with each alias written out."""
    if not isinstance(value, (dict, list)):
        return 1
    if id(value) not in known:
        known[id(value)] = _MOST_VALUES  # of one that holds itself
        inner = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_written_out(one, known) for one in inner)
    return known[id(value)]


def numbered_files(folder: Path, prefix: str, suffix: str) -> list[tuple[int, Path]]:
    """Files called ``<prefix><number><suffix>``, by number.

    Other names, such as those of copies or with a number like "01", are left out.
    """
    named = ((p.stem.removeprefix(prefix), p) for p in folder.glob(f"{prefix}*{suffix}"))
    return sorted((int(text), path) for text, path in named if re.fullmatch(r"0|[1-9][0-9]*", text))


@dataclass(frozen=True)
class PlannedCell:
    """A cell as the user requested it."""

    cell_id: str
    config_id: str
    name: FileName
    """The name of its folder inside the sweep's."""
    overrides: tuple[str, ...]
    """The overrides the user typed, as Hydra parsed them."""
    repeat: NonNegativeInt
    devices: WorldSize | None
    """Number of devices; None for all of the host that runs it."""


@dataclass(frozen=True)
class SweepPlan:
    """The cells of a sweep, in the order in which they are to run."""

    created_at: UnixTime
    command: tuple[str, ...]
    order_seed: int
    """Seed of the shuffle that interleaved the repeats."""
    cells: tuple[PlannedCell, ...]
    policy: str = "exclusive"
    """``exclusive``: one cell at a time on a host; ``packed``: as many as fit."""
    slots: NonNegativeInt | None = None
    """Number of devices of the host that ran it last; None if nothing ran yet."""
    seal: str | None = None
    """Mark of the folder and the command by whoever ran it: :func:`scalewise.host.seal`."""


def sweeps_in(parent: Path) -> list[Path]:
    """The folders of sweeps that lie in ``parent``, by name."""
    return sorted(plan.parent for plan in parent.glob("*/sweep.json"))


class SweepFolder:
    """A sweep on disk: ``sweep.json``, one folder for each cell, ``report/``."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.plan_path = self.path / "sweep.json"
        self.lock_path = self.path / "sweep.lock"
        self.report_path = self.path / "report"

    def save_plan(self, plan: SweepPlan) -> None:
        save_json(self.plan_path, replace(plan, command=redacted_words(plan.command)))

    def load_plan(self) -> SweepPlan:
        return load_json(self.plan_path, SweepPlan)

    def cell(self, name: str) -> CellFolder:
        return CellFolder(self.path / name)

    def is_done(self, planned: PlannedCell) -> bool:
        """Whether the cell has a result, and it is this cell's."""
        return self.cell(planned.name).is_done(planned.cell_id)

    def cells(self) -> Iterator[tuple[PlannedCell, CellFolder]]:
        """Every planned cell with its folder, in the plan's order."""
        for planned in self.load_plan().cells:
            yield planned, self.cell(planned.name)


@dataclass(frozen=True)
class CurrentAttempt:
    """The attempt whose records are in the cell's folder."""

    number: int
    """Counted from 1."""
    stamp: int
    """When it began to write (Unix time, ns): tells apart two attempts with the same number."""
    result: CellResult | None
    failure: Ending | None

    @property
    def has_ended(self) -> bool:
        return self.result is not None or self.failure is not None


def current_attempt(cell: CellFolder) -> CurrentAttempt | None:
    """The attempt to mirror; None before it starts, and for a skipped cell.

    Raises :class:`RecordError` for a record that cannot be read.
    """
    if not (cell.path / "config.yaml").exists():
        return None
    provenance = cell.path / "provenance.json"
    stamp = provenance.stat().st_mtime_ns if provenance.exists() else None
    if cell.has_result_file():
        result = cell.load_result()
        return CurrentAttempt(result.attempt, stamp or 0, result, None)
    last = next(reversed(list(cell.attempts())), None)
    number = 0 if last is None or last.number is None else last.number
    if last is None or (stamp is not None and stamp / 1e9 > last.finished_at):
        # Rank 0 writes the provenance when it starts.
        return None if stamp is None else CurrentAttempt(number + 1, stamp, None, None)
    if last.outcome == "skipped":
        return None
    return CurrentAttempt(number, stamp or 0, None, last)
