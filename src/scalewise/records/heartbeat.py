"""A rank's progress in 56 bytes of shared memory: written every step, read by anyone.

The writer packs into a memory-mapped file, which costs less than a microsecond and no system
call, so it may stay on the training path.
"""

from __future__ import annotations

import mmap
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from scalewise.records.files import RecordError, read_plain

_LAYOUT = struct.Struct("<qqqddqq")


@dataclass(frozen=True)
class Heartbeat:
    """The last sign of life of a rank."""

    step: int
    """Optimizer steps done."""
    total_steps: int
    """Steps it means to do; -1 if it does not know."""
    samples: int
    """Samples this rank has fed."""
    started_at: float
    """Unix time training began; 0 before it does."""
    time: float
    """Unix time of this beat, as the clock stood when the rank began."""
    first_step: int = 0
    """Steps that an earlier try had done when this one went on from its checkpoint."""
    first_samples: int = 0
    """Samples fed by then."""


class HeartbeatWriter:
    """Owned by a rank."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_LAYOUT.pack(0, -1, 0, 0.0, time.time(), 0, 0))
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), _LAYOUT.size)
        self.total_steps = -1
        """Steps it means to do; -1 if it does not know."""
        self._started = 0.0
        # A clock set during training would make a rate of a step, and a time left, of nothing.
        self._epoch_offset_s = time.time() - time.monotonic()
        self._first = (0, 0)

    def begin(self, total_steps: int | None, step: int = 0, samples: int = 0) -> None:
        """Training starts now, after ``step`` steps, and means to take ``total_steps`` in all."""
        self.total_steps = -1 if total_steps is None else total_steps
        self._started = self._now()
        self._first = (step, samples)
        self.beat(step, samples)

    def beat(self, step: int, samples: int) -> None:
        now = self._now()
        _LAYOUT.pack_into(
            self._map, 0, step, self.total_steps, samples, self._started, now, *self._first
        )

    def _now(self) -> float:
        return self._epoch_offset_s + time.monotonic()

    def close(self) -> None:
        self._map.close()
        self._file.close()


def read_heartbeat(path: Path) -> Heartbeat | None:
    """The last beat, or None before the first. Raises RecordError for what is no heartbeat."""
    try:
        data = read_plain(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error
    return Heartbeat(*_LAYOUT.unpack(data)) if len(data) == _LAYOUT.size else None
