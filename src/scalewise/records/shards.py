"""Which samples a rank really fed in its first epoch, by index.

Under data parallelism the ranks' sets must be disjoint and together cover the data. Whether they
do is read from what was fed, not from what the sampler was told.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from scalewise.records.files import RecordError, open_record

# What numpy, zipfile and zlib raise for an archive that was cut off or garbled.
_DAMAGED = (
    OSError, EOFError, KeyError, TypeError, ValueError, MemoryError, OverflowError, RuntimeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
MOST_UNPACKED = 2**30
"""Bytes: 134 million samples of one rank."""


@dataclass(frozen=True)
class ShardIndices:
    """The first epoch of one rank."""

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


def read_shard(path: Path, rank: int) -> ShardIndices:
    try:
        # Opened here, because numpy leaves a file it cannot read open.
        with open_record(path) as file, np.load(file) as data:
            size = sum(part.file_size for part in data.zip.infolist())
            if size > MOST_UNPACKED:
                found = f"found {size:,} bytes when unpacked"
                raise ValueError(f"{found}; allowed: up to {MOST_UNPACKED:,}; remove it")
            return ShardIndices(
                rank,
                data["indices"],
                int(data["dataset_size"]),
                bool(data["epoch_complete"]),
                _data_shard(data),
            )
    except _DAMAGED as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error


def _data_shard(data: Mapping[str, npt.NDArray[np.int64]]) -> int | None:
    """None also in records from before ranks could share a part of the data."""
    number = int(data["data_shard"]) if "data_shard" in data else -1
    return None if number < 0 else number
