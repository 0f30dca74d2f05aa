"""One of the ranks that measure planted loaders: ``python -m fakes.loader_ranks <folder>``.

All ranks of the environment measure theirs at once; the first leaves ``loader.json``.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist
from torch.utils.data import Dataset

from fakes.requests import asked
from scalewise.records import CellFolder, DeviceInfo, LoaderRecord, find_record
from scalewise.train import RankContext
from scalewise.train.loader_rates import measure_loader

BATCH_S = 0.1
"""What a batch takes each worker."""
BATCH_SIZE = 16
"""Of all ranks."""
WORKERS = (0, 2)
_PASS_S = 0.5
_ROW_BYTES = 4096


def planted_rate(workers: int) -> float:
    """Samples/s of all ranks, by arithmetic: each worker gives a batch after a time."""
    return max(1, workers) * BATCH_SIZE / BATCH_S


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Rows of a file, read when they are asked for; a batch takes a millisecond beside."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __len__(self) -> int:
        return Path(self.path).stat().st_size // _ROW_BYTES

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        time.sleep(1e-3)
        with Path(self.path).open("rb") as file:
            read = [os.pread(file.fileno(), _ROW_BYTES, i * _ROW_BYTES) for i in indices]
        rows = np.frombuffer(b"".join(read), dtype="u1").reshape(len(indices), -1)
        return torch.from_numpy(rows.copy()), torch.zeros(len(indices))


def measured(folder: Path, *overrides: str) -> LoaderRecord | None:
    """The record of a cell whose loaders this rank runs, alone or with its peers."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    strategy = "single" if size == 1 else "ddp"
    cell = asked(
        "workload=loader", f"strategy={strategy}", f"batch_size={BATCH_SIZE}", "hardware=cpu",
        *overrides,
    ).cell  # fmt: skip
    with warnings.catch_warnings():
        # torch warns of more workers than cores, and Python of forks beside gloo's threads.
        warnings.simplefilter("ignore")
        context = RankContext(rank, rank, size, DeviceInfo("cpu", "a processor"))
        measure_loader(cell, CellFolder(folder), context, _PASS_S)
    return find_record(folder, LoaderRecord) if rank == 0 else None


def slow(workers: int) -> tuple[str, ...]:
    """A data set of which every batch takes a known time."""
    return (
        "dataset._target_=fakes.own_code.SlowData",
        f"+dataset.batch_ms={1000 * BATCH_S:g}",
        f"dataset.loader.num_workers={workers}",
    )


def main() -> None:
    measured(Path(sys.argv[1]), *slow(WORKERS[-1]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
