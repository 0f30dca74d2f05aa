"""Where everything of a cell lies, and its JSON records."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from scalewise.records.files import RecordError, load_json, read_record, save_json, write_atomically
from scalewise.records.provenance import Provenance
from scalewise.records.rank import RankError, RankSummary
from scalewise.records.result import Attempt, CellResult, RunningAttempt, TrackingRecord
from scalewise.validation import DEEPEST, DataError, build, to_plain

ALIVE_S = 15.0
"""Who runs a cell gives a sign of life every second: after this long without, it is gone."""
_OF_A_TRY = ("steps", "metrics", "audit", "ranks", "gpu", "heartbeat", "profile")
"""Folders that each try fills anew."""


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

    @property
    def profile_path(self) -> Path:
        """Folder of what a profiler saw; see :mod:`scalewise.records.profile`."""
        return self.path / "profile"

    def log_path(self, rank: int, stream: Literal["out", "err"]) -> Path:
        return self.path / "logs" / f"rank{rank}.{stream}"

    def device_series_path(self, host: str) -> Path:
        return self.path / "gpu" / f"{host}.jsonl"

    def device_series_paths(self) -> list[Path]:
        return sorted((self.path / "gpu").glob("*.jsonl"))

    def ranks_with_steps(self) -> list[int]:
        """Ranks that left step records, in order."""
        return [rank for rank, _ in _numbered(self.path / "steps", "rank", ".bin")]

    def ranks_with_metrics(self) -> list[int]:
        """Ranks that left metrics, in order."""
        return [rank for rank, _ in _numbered(self.path / "metrics", "rank", ".jsonl")]

    # Configuration and provenance

    def save_config(self, config: Mapping[str, Any]) -> None:
        import yaml

        text = yaml.safe_dump(to_plain(config), sort_keys=False, allow_unicode=True)
        write_atomically(self.path / "config.yaml", text.encode())

    def load_config(self) -> dict[str, Any]:
        import yaml  # a supervisor reads no configuration, and starts faster without it

        path = self.path / "config.yaml"
        try:
            return build(dict[str, Any], _load_yaml(read_record(path).decode()))
        except DataError as error:
            raise RecordError(f"{path}: {error}") from None
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise RecordError(f"{path}: cannot be read: {error}") from error

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
        """Make room for another try: what an unfinished one recorded goes, its logs are kept."""
        if self.has_result_file():
            # It ended once, even if its result is torn or of another cell.
            self.move_to_earlier((*_OF_A_TRY, "logs", "result.json"))
        for name in _OF_A_TRY:
            if (self.path / name).exists():
                shutil.rmtree(self.path / name)
        logs = self.path / "logs"
        if logs.exists():
            self._keep_logs(logs, self.next_attempt_number() - 1)

    def set_aside(self) -> Path:
        """Move everything of a run to ``earlier/<n>``, so that the cell can run again."""
        kept = ("earlier", "attempts", "result.json")
        names = sorted(path.name for path in self.path.iterdir() if path.name not in kept)
        return self.move_to_earlier((*names, "result.json"))

    def move_to_earlier(self, names: Iterable[str]) -> Path:
        """Move files and folders of the cell to a new ``earlier/<n>``, in the order of ``names``.

        The result has to come last: where it stands, :meth:`clear_attempt` deletes nothing, so
        that a crash amid the moves loses nothing either.
        """
        earlier = self.path / "earlier"
        numbers = [int(p.name) for p in earlier.glob("*") if p.name.isdecimal()]
        kept = earlier / str(max(numbers, default=0) + 1)
        kept.mkdir(parents=True)
        for name in names:
            if os.path.lexists(self.path / name):
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

    def load_result_of(self, cell_id: str) -> CellResult:
        """The result of this cell. Raises :class:`RecordError` also for another cell's."""
        result = self.load_result()
        if result.cell_id != cell_id:
            raise RecordError(
                f"{self.path / 'result.json'}: result of cell {result.cell_id}; "
                f"that of cell {cell_id} was expected"
            )
        return result

    def has_result_file(self) -> bool:
        """Whether a result was written, be it damaged since."""
        return os.path.lexists(self.path / "result.json")  # a link that leads nowhere, too

    def is_done(self) -> bool:
        """A cell is done if and only if its result can be read."""
        try:
            self.load_result()
        except RecordError:
            return False
        return True

    def result_of(self, cell_id: str) -> CellResult | None:
        """The result, if it is there, can be read and is that of this cell."""
        try:
            return self.load_result_of(cell_id)
        except RecordError:
            return None

    def save_attempt(self, attempt: Attempt) -> None:
        save_json(self.path / "attempts" / f"{attempt.number}.json", attempt)

    def attempts(self) -> Iterator[Attempt]:
        """Tries that failed, oldest first."""
        for _, path in _numbered(self.path / "attempts", "", ".json"):
            yield load_json(path, Attempt)

    def next_attempt_number(self) -> int:
        numbers = [number for number, _ in _numbered(self.path / "attempts", "", ".json")]
        return max(numbers, default=0) + 1

    # While it runs

    def save_running(self, running: RunningAttempt) -> None:
        save_json(self._running_path, running)

    def load_running(self) -> RunningAttempt | None:
        """The try under way, or the last one that nobody lived to record; None for none to read."""
        try:
            return self.read_running()
        except RecordError:
            return None

    def read_running(self) -> RunningAttempt | None:
        """As :meth:`load_running`, but raises :class:`RecordError` for one that is damaged."""
        try:
            return load_json(self._running_path, RunningAttempt)
        except RecordError:
            if not self._running_path.exists():
                return None  # also where its try has ended in this moment
            raise

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


def _load_yaml(text: str) -> Any:
    """YAML as configurations are written. Raises ValueError for what stands for far more."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where it was built
    level = 0
    for event in yaml.parse(text, loader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("found an alias; allowed: every value written out")
        level += isinstance(event, yaml.CollectionStartEvent)
        level -= isinstance(event, yaml.CollectionEndEvent)
        if level > DEEPEST:  # libyaml's time grows with the square of the levels
            raise ValueError(f"found more than {DEEPEST} levels of brackets; allowed: fewer")
    return yaml.load(text, loader)


def _numbered(folder: Path, prefix: str, suffix: str) -> list[tuple[int, Path]]:
    """Files called ``<prefix><number><suffix>``, in order: a copy beside them is no record."""
    named = ((p.stem.removeprefix(prefix), p) for p in folder.glob(f"{prefix}*{suffix}"))
    return sorted((int(number), path) for number, path in named if _is_number(number))


def _is_number(text: str) -> bool:
    # As it is written: neither "01", beside "1", nor the digits of other scripts.
    return text.isascii() and text.isdecimal() and str(int(text)) == text
