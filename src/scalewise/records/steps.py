"""The steps of a rank, the samples it was fed, and the profile of its kernels.

A step has one binary row of fixed width. Its file starts with one line of JSON (schema version, row
layout, clock offset), then blocks of rows of ``STEP_DTYPE``. Before each block stand its number of
rows and a CRC-32 of them, of all blocks before and of the header: a changed bit is seen wherever it
is. A last block that was cut off is dropped, since nobody can tell whether its rows are true.
Absent values are NaN in the file and in the arrays.

A step begins where the one before it ended, so the phases of a step add up to it. There are two
timelines, never mixed: ``host_*`` from ``time.perf_counter_ns`` and ``device_*`` from CUDA events.
"""

from __future__ import annotations

import json
import struct
import threading
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Final, Literal

import numpy as np
import numpy.typing as npt

from scalewise.records.files import (
    RecordError,
    is_version,
    load_json,
    open_plain,
    parse_json,
    parse_series,
    save_json,
)
from scalewise.records.folders import CellFolder, numbered_files
from scalewise.records.validation import shown

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
STEP_SCHEMA_VERSION: Final = 2
_BLOCK = struct.Struct("<II")
"""Number of rows, and the checksum."""
_MOST_IN_BLOCK = 2**15
"""Rows: a reader that follows the file holds a whole block, of 3.5 MB then."""


class StepWriter:
    """Appends step rows to a file. Not for the training thread: it writes."""

    def __init__(self, path: Path, epoch_offset_ns: int | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("wb")
        self.rows = 0
        self._fed = Counter[int]()
        self.timed = (0, 0.0)
        """Steps that are no warm-up, and their seconds on the host."""
        if epoch_offset_ns is None:
            epoch_offset_ns = time.time_ns() - time.perf_counter_ns()
        header = {
            "schema_version": STEP_SCHEMA_VERSION,
            "dtype": STEP_DTYPE.descr,
            # Adding this to start_ns gives Unix time in nanoseconds.
            "epoch_offset_ns": epoch_offset_ns,
        }
        line = json.dumps(header).encode() + b"\n"
        self._sum = zlib.crc32(line)
        self._file.write(line)
        self._file.flush()

    @property
    def step_samples(self) -> tuple[int, int]:
        """Of the largest step, and of the usual one: the largest unless seven of ten are alike."""
        if not self._fed:
            return 0, 0
        largest, (usual, times) = max(self._fed), self._fed.most_common(1)[0]
        return largest, usual if times >= 0.7 * self.rows else largest

    def append_rows(self, rows: npt.NDArray[np.void]) -> None:
        """Write rows of ``STEP_DTYPE``, one element a step."""
        self._fed.update(rows["samples"].tolist())
        timed_ms = rows["host_step_ms"][(rows["flags"] & WARMUP) == 0]
        steps, seconds = self.timed
        self.timed = steps + len(timed_ms), seconds + float(timed_ms.sum(dtype=float)) / 1e3
        for first in range(0, len(rows), _MOST_IN_BLOCK):
            block = rows[first : first + _MOST_IN_BLOCK].astype(STEP_DTYPE, copy=False)
            data = block.tobytes()
            self._sum = _checksum(len(block), data, self._sum)
            self._file.write(_BLOCK.pack(len(block), self._sum) + data)
            self.rows += len(block)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class StepSeries:
    """The steps of one rank."""

    rank: int
    rows: npt.NDArray[np.void]
    """Rows of ``STEP_DTYPE``, one a step, in order."""
    epoch_offset_ns: int
    """Add to ``start_ns`` for Unix time."""
    torn_bytes: int = 0
    """Bytes of a last block that was cut off and dropped."""
    timed_from: int = 0
    """Steps before this one are warm-up too, whatever their flags say."""

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def is_timed(self) -> npt.NDArray[np.bool_]:
        """Whether each step is no warm-up, shape ``[steps]``."""
        known: npt.NDArray[np.bool_] = (self.rows["flags"] & WARMUP) == 0
        return known & (self.rows["step"] >= self.timed_from) if self.timed_from else known

    def select(self, kept: npt.NDArray[np.bool_]) -> StepSeries:
        """The same series with the steps of the mask alone; neighbours are not copied."""
        if kept.all():
            return self
        first, count = int(kept.argmax()), np.count_nonzero(kept)
        together = kept[first : first + count].all()
        return replace(self, rows=self.rows[first : first + count] if together else self.rows[kept])

    def timed(self) -> StepSeries:
        """The same series without its warm-up steps."""
        return self.select(self.is_timed)

    @cached_property
    def timeline(self) -> str:
        """``device`` where the device was timed, else ``host``."""
        has_device = len(self.rows) > 0 and not np.isnan(self.rows["device_step_ms"]).all()
        return "device" if has_device else "host"

    def column(self, name: str, timeline: str | None = None) -> npt.NDArray[np.float64]:
        """Times in ms of phase ``name`` (or ``step``, ``arrival``), NaN where missing.

        Shape ``[steps]``. ``timeline`` is ``host``, ``device``, or None for the better one.
        """
        return np.asarray(self.rows[f"{timeline or self.timeline}_{name}_ms"], dtype=np.float64)


class StepParser:
    """Makes rows of a step file's bytes, given in order and in pieces of any size.

    Raises ValueError for a fault; nothing can be parsed after it.
    """

    def __init__(self) -> None:
        self.epoch_offset_ns: int | None = None
        """Add to ``start_ns`` for Unix time; None until the header was whole."""
        self.rest = b""
        """The end that is not whole yet."""
        self._sum = 0

    def parse(self, data: bytes) -> npt.NDArray[np.void]:
        """Rows of the blocks that are whole by now and were not returned before."""
        self.rest += data
        begin = 0
        if self.epoch_offset_ns is None:
            begin = self.rest.find(b"\n") + 1
            if not begin:
                return np.empty(0, STEP_DTYPE)
            line = self.rest[:begin]
            self.epoch_offset_ns, self._sum = _parse_header(line), zlib.crc32(line)
        blocks = []
        while (rows := self._block(begin)) is not None:
            blocks.append(rows)
            begin += _BLOCK.size + len(rows)
        self.rest = self.rest[begin:]
        return np.frombuffer(b"".join(blocks), STEP_DTYPE)

    def _block(self, begin: int) -> memoryview | None:
        """The rows of the block there; None where it is not whole yet."""
        rest = memoryview(self.rest)[begin:]
        if len(rest) < _BLOCK.size:
            return None
        count, checksum = _BLOCK.unpack_from(rest)
        if not 0 < count <= _MOST_IN_BLOCK:
            raise ValueError("a block of rows has an impossible length")
        end = _BLOCK.size + count * STEP_DTYPE.itemsize
        if end > len(rest):
            return None
        rows = rest[_BLOCK.size : end]
        self._sum = _checksum(count, rows, self._sum)
        if checksum != self._sum:
            raise ValueError("a checksum shows that rows were changed after they were written")
        return rows


def _parse_header(line: bytes) -> int:
    """The clock offset. Raises ValueError."""
    try:
        header = parse_json(line)
        version, layout = header["schema_version"], [tuple(f) for f in header["dtype"]]
        offset = int(header["epoch_offset_ns"])
        if abs(offset) >= 2**62:
            raise ValueError(f"epoch_offset_ns: found {shown(offset)}; allowed: below 2**62")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"the header is not a step header: {error}") from error
    if not is_version(version, STEP_SCHEMA_VERSION) or layout != STEP_DTYPE.descr:
        reads = f"this scalewise reads {STEP_SCHEMA_VERSION}"
        raise ValueError(f"schema version {shown(version)}; {reads}")
    return offset


def _checksum(count: int, rows: bytes | memoryview, before: int) -> int:
    """CRC of a block and of all ``before``: a block lost from the middle shows."""
    return zlib.crc32(rows, zlib.crc32(count.to_bytes(4, "little"), before))


def read_steps(path: Path, rank: int) -> StepSeries:
    """Read the steps of a rank; a torn last block is dropped and counted in ``torn_bytes``.

    Raises :class:`RecordError` for rows that no training writes or that were changed: one of them
    tells nothing of how many others are wrong.
    """
    parser = StepParser()
    rows = parse_series(path, parser)
    if parser.epoch_offset_ns is None:
        raise RecordError(f"{path}: the header is torn")
    fault = _fault(rows)
    if fault:
        raise RecordError(f"{path}: {fault}; they are left out")
    return StepSeries(rank, rows, parser.epoch_offset_ns, len(parser.rest))


def _fault(rows: npt.NDArray[np.void]) -> str:
    """The fault of rows that no training writes; empty for sound ones."""
    if len(rows) and (np.diff(rows["step"]) != 1).any():
        return "the steps do not follow one another"
    if (rows["samples"] < 0).any():
        return "steps fed less than no sample"
    for name in (f"{line}_step_ms" for line in ("host", "device")):
        # Absent times are NaN, and neither.
        times = rows[name]
        if ((times < 0) | (times == np.inf)).any():
            return f"{name} is negative or infinite"
    return ""


_DAMAGED = (
    OSError, EOFError, KeyError, TypeError, ValueError, MemoryError, OverflowError, RuntimeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""Errors of numpy, zipfile and zlib for an archive that was cut off or garbled."""


@dataclass(frozen=True)
class ShardIndices:
    """Which samples a rank really fed in its first epoch, whatever its sampler was told.

    Under data parallelism the ranks' sets must be disjoint and together cover the data.
    """

    rank: int
    indices: npt.NDArray[np.int64]
    """Dataset indices in the order they were drawn, shape ``[samples]``; repeats are kept."""
    dataset_size: int
    epoch_complete: bool
    """False when training stopped inside the first epoch: coverage cannot be judged then."""
    data_shard: int | None = None
    """Which part of the data this rank was to feed; ranks that share one were to feed the same
    samples (stages of a pipeline, parts of a tensor). None: a part of its own."""


def write_shard(path: Path, shard: ShardIndices) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        indices=shard.indices.astype(np.int64),
        dataset_size=np.int64(shard.dataset_size),
        epoch_complete=np.bool_(shard.epoch_complete),
        data_shard=np.int64(-1 if shard.data_shard is None else shard.data_shard),
    )


_ONE_AT_A_TIME: Final = threading.Lock()
"""numpy parses an array's header as Python, which threads of Python 3.11 cannot do side by side
(CPython issue 106905)."""


def read_shard(path: Path, rank: int) -> ShardIndices:
    """Raises :class:`RecordError` for an archive that is damaged."""
    try:
        # Opened here, because numpy leaves a file it cannot read open.
        with open_plain(path) as file, _ONE_AT_A_TIME, np.load(file) as data:
            part = int(data["data_shard"])
            return ShardIndices(
                rank,
                data["indices"],
                int(data["dataset_size"]),
                bool(data["epoch_complete"]),
                None if part < 0 else part,
            )
    except _DAMAGED as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error


@dataclass(frozen=True)
class OperationTime:
    """One kernel (on a CPU host: one kind of collective) by its name."""

    name: str
    calls: int
    """In all steps of the window."""
    ms_per_step: float
    """Sum of its durations over the steps; those that ran side by side are all counted."""
    communication: bool


@dataclass(frozen=True)
class WindowProfile:
    """Communication and computation of one rank, from their intervals.

    Intervals that overlap, on whatever streams or threads, are merged first: nothing is counted
    twice. A profiler slows what it watches: cells of their own write it, and none of their steps is
    timed.
    """

    rank: int
    steps: int
    timeline: Literal["device", "host"]
    """``device``: kernels by name; ``host``: collectives and operators of a CPU host."""
    span_ms: float
    """First to last of them, a step."""
    computation_ms: float
    """A step."""
    communication_ms: float | None
    """A step, waiting for the other ranks inside the collectives included; None where there was
    none."""
    overlapped_ms: float | None
    """The part of ``communication_ms`` during which something was computed, a step."""
    operations: tuple[OperationTime, ...]
    """Every collective, and the longest of the others, longest first."""
    collectives_ms: tuple[float, ...]
    """How long each collective ran, in the order in which they began: the k-th is the same one on
    every rank that runs as many."""
    reduced_steps: tuple[int, ...] = ()
    """Numbers of the steps after the window, without profiler, in which DDP reduced gradients."""
    unreduced_steps: tuple[int, ...] = ()
    """Those in which it did not (``no_sync``), in blocks between the others: the replicas drift
    apart, and the model is thrown away. The step records tell how long each took."""
    trace: str | None = None
    """File name of the Chrome trace beside this record; None where none was asked for."""
    missing: Mapping[str, str] = field(default_factory=dict)


def save_profile(folder: CellFolder, profile: WindowProfile) -> None:
    """Write ``profile/rank<r>.json``, atomically."""
    save_json(folder.profile_path / f"rank{profile.rank}.json", profile)


def load_profiles(folder: CellFolder) -> tuple[WindowProfile, ...]:
    """Profiles in the order of ranks, of those that left one. Raises :class:`RecordError`."""
    paths = numbered_files(folder.profile_path, "rank", ".json")
    return tuple(load_json(path, WindowProfile) for _, path in paths)
