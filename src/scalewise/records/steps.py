"""One fixed-width binary row for every training step of a rank.

The file starts with one line of JSON (schema version, row layout, clock offset), then rows of
``STEP_DTYPE``. A file cut off in the middle of a row loses that row only. Absent values are NaN
in the file and stay NaN in the arrays: they are never zero.

A step begins where the one before it ended, so the phases of a step add up to it. There are two
timelines, never mixed: ``host_*`` from ``time.perf_counter_ns`` and ``device_*`` from CUDA events.
"""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

from scalewise.records.files import SCHEMA_VERSION, RecordError, read_record

PHASES: Final = (
    "data_wait",  # asking the loader until the batch is there
    "h2d",  # moving the batch to the device
    "forward",  # training_step
    "backward",  # until the last gradient bucket is ready (all of backward without DDP)
    "exposed_comm",  # from there to the end of backward; missing where nothing is reduced
    "optimizer",  # clipping, step, scheduler
    "other",  # callbacks, loops, logging: what is left of the step
)
"""The phases a step is made of, in order. Each column is ``<timeline>_<phase>_ms``."""

_TIMES: Final = (*PHASES, "step", "arrival")
"""Besides the phases: the whole step, and its start until the last bucket is ready."""

STEP_DTYPE: Final = np.dtype(
    [
        ("step", "<i8"),
        ("start_ns", "<i8"),  # perf_counter_ns at the start of the step
        ("epoch", "<i4"),
        ("samples", "<i4"),  # samples this rank fed in this step
        ("flags", "<u4"),
        *[(f"{line}_{name}_ms", "<f4") for line in ("host", "device") for name in _TIMES],
    ]
)
WARMUP: Final = 1
"""Flag of a step that is excluded from every timing."""
# Bit 2 is set in older files, where a process was stopped; it means nothing any more.

_ROW = struct.Struct("<qqiiI" + "f" * 18)
assert _ROW.size == STEP_DTYPE.itemsize


class StepWriter:
    """Appends step rows to a file. Not for the training thread: it formats and writes."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("wb")
        self.rows = 0
        header = {
            "schema_version": SCHEMA_VERSION,
            "dtype": STEP_DTYPE.descr,
            # Adding this to start_ns gives Unix time in nanoseconds.
            "epoch_offset_ns": time.time_ns() - time.perf_counter_ns(),
        }
        self._file.write(json.dumps(header).encode() + b"\n")
        self._file.flush()

    def append(
        self,
        step: int,
        start_ns: int,
        epoch: int,
        samples: int,
        flags: int,
        host_ms: Mapping[str, float | None],
        device_ms: Mapping[str, float | None] | None,
    ) -> None:
        """Write one row. ``host_ms`` and ``device_ms`` map PHASES, ``step`` and ``arrival`` to ms.

        A missing key or None is recorded as missing.
        """
        times = [_nan(line.get(name)) for line in (host_ms, device_ms or {}) for name in _TIMES]
        self._file.write(_ROW.pack(step, start_ns, epoch, samples, flags, *times))
        self.rows += 1

    def append_rows(self, rows: npt.NDArray[np.void]) -> None:
        """Write rows of ``STEP_DTYPE``, one element a step."""
        self._file.write(rows.astype(STEP_DTYPE, copy=False).tobytes())
        self.rows += len(rows)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _nan(value: float | None) -> float:
    return math.nan if value is None else value


@dataclass(frozen=True)
class StepSeries:
    """The steps of one rank."""

    rank: int
    rows: npt.NDArray[np.void]
    """Structured array of ``STEP_DTYPE``, one element a step, in order."""
    epoch_offset_ns: int
    """Add to ``start_ns`` for Unix time."""
    torn_bytes: int = 0
    """Bytes of a last row that was cut off and dropped."""

    def __len__(self) -> int:
        return len(self.rows)

    def timed(self) -> StepSeries:
        """The same series without its warm-up steps."""
        kept = self.rows[(self.rows["flags"] & WARMUP) == 0]
        return StepSeries(self.rank, kept, self.epoch_offset_ns, self.torn_bytes)

    @property
    def timeline(self) -> str:
        """``device`` where the device was timed, else ``host``."""
        has_device = len(self.rows) > 0 and not np.isnan(self.rows["device_step_ms"]).all()
        return "device" if has_device else "host"

    def column(self, name: str, timeline: str | None = None) -> npt.NDArray[np.float64]:
        """Times in ms of phase ``name`` (or ``step``, ``arrival``), NaN where missing.

        Shape ``[steps]``. ``timeline`` is ``host``, ``device``, or None for the better one.
        """
        values = self.rows[f"{timeline or self.timeline}_{name}_ms"]
        return np.asarray(values, dtype=np.float64)


def read_steps(path: Path, rank: int) -> StepSeries:
    """Read the steps of a rank; a torn last row is dropped and counted in ``torn_bytes``.

    Raises :class:`RecordError` for rows that no training writes: one of them tells nothing of how
    many others are wrong.
    """
    try:
        data = read_record(path)
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error
    head, newline, body = data.partition(b"\n")
    if not newline:
        raise RecordError(f"{path}: the header is torn")
    try:
        header = json.loads(head)
        version, layout = header["schema_version"], _layout(header["dtype"])
        offset = int(header["epoch_offset_ns"])
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path}: the header is not a step header: {error}") from error
    if version != SCHEMA_VERSION or layout != STEP_DTYPE:
        raise RecordError(
            f"{path}: schema version {version!r}; this scalewise reads {SCHEMA_VERSION}"
        )
    torn = len(body) % STEP_DTYPE.itemsize
    rows = np.frombuffer(body[: len(body) - torn], dtype=STEP_DTYPE)
    fault = _fault(rows)
    if fault:
        raise RecordError(f"{path}: {fault}; they are left out")
    return StepSeries(rank, rows, offset, torn)


def _fault(rows: npt.NDArray[np.void]) -> str:
    """What cannot be true of the rows of a rank; empty for sound ones."""
    if len(rows) and (np.diff(rows["step"]) != 1).any():
        return "the steps do not follow one another"
    if (rows["samples"] < 0).any():
        return "steps fed less than no sample"
    for name in (f"{line}_step_ms" for line in ("host", "device")):
        # Absent times are NaN, and neither.
        if (np.isinf(rows[name]) | (rows[name] < 0)).any():
            return f"{name} is negative or infinite"
    return ""


def _layout(description: Sequence[Sequence[str]]) -> np.dtype[np.void]:
    return np.dtype([(str(name), str(kind)) for name, kind in description])
