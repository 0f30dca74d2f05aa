"""What the host's sampler hands to its peers: short files of JSON lines, the old ones removed.

A line holds one reading of all devices that anyone wants. A new file is begun every 30 s and by
every new writer, and a writer never returns to an older file: so a reader that sees a newer file
knows that the older one is complete, a torn last line of a killed writer included.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from scalewise.gpu.events import DeviceEvent
from scalewise.records import DeviceSample
from scalewise.validation import build, to_plain

_FOLDER = "spool-2"
"""Its number changes with the format: another scalewise on this host then samples for itself."""
_SEGMENT_S = 30.0
_KEPT_SEGMENTS = 4


@dataclass(frozen=True)
class Reading:
    """One reading of some devices of a host."""

    time: float
    """Unix time."""
    interval_s: float
    """How often readings were taken at the time."""
    cost_ms: float
    """How long it took for all of them together."""
    extra_lanes: bool
    """Whether more than the core lane was read."""
    samples: Mapping[str, DeviceSample]
    """By UUID; a device that is lost is absent."""
    events: Mapping[str, tuple[DeviceEvent, ...]] = field(default_factory=dict)
    """By UUID, what happened to a device."""
    lost: tuple[str, ...] = ()
    """UUIDs that were asked for and do not answer."""


class SpoolWriter:
    """The elected sampler's end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / _FOLDER
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._file: TextIO | None = None
        self._begun_at = 0.0

    def write(self, reading: Reading) -> None:
        if self._file is None or time.monotonic() - self._begun_at > _SEGMENT_S:
            self._begin()
        assert self._file is not None
        plain = to_plain(reading)
        plain["samples"] = [
            {k: v for k, v in sample.items() if v is not None}
            for sample in plain["samples"].values()
        ]
        self._file.write(json.dumps(plain) + "\n")
        self._file.flush()

    def _begin(self) -> None:
        self.close()
        segments = _segments(self._folder)
        # The wall clock may have been set back since the last segment.
        newest = int(segments[-1].stem) if segments else 0
        name = max(time.time_ns(), newest + 1)
        self._file = (self._folder / f"{name}.jsonl").open("w", encoding="ascii")
        self._begun_at = time.monotonic()
        for old in segments[: 1 - _KEPT_SEGMENTS]:
            old.unlink(missing_ok=True)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class SpoolReader:
    """A peer's end: readings from now on."""

    def __init__(self, folder: Path, since: float) -> None:
        """Readings from Unix time ``since`` on are returned."""
        self._folder = folder / _FOLDER
        self._since = since
        self._segment = ""
        self._offset = 0

    def read(self, uuids: frozenset[str]) -> Iterator[Reading]:
        """New readings of ``uuids``, oldest first; those without any of them are left out."""
        for path in _segments(self._folder):
            if path.name < self._segment:
                continue
            if path.name > self._segment:
                self._segment, self._offset = path.name, 0
            for line in self._new_lines(path):
                reading = _slice(line, uuids)
                if reading.time >= self._since and (reading.samples or reading.events):
                    yield reading

    def _new_lines(self, path: Path) -> Iterator[bytes]:
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield line


def _segments(folder: Path) -> list[Path]:
    # Names are nanoseconds since 1970: of equal length, so that they sort as numbers do.
    return sorted(folder.glob("*.jsonl"))


def _slice(line: bytes, uuids: frozenset[str]) -> Reading:
    plain = json.loads(line)
    plain["samples"] = {s["id"]: s for s in plain["samples"] if s["id"] in uuids}
    plain["events"] = {u: e for u, e in plain["events"].items() if u in uuids}
    plain["lost"] = [u for u in plain["lost"] if u in uuids]
    return build(Reading, plain)
