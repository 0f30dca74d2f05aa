"""Training on a folder of token shards, memory-mapped."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from scalewise.config import DatasetError, require
from scalewise.datasets.contract import Batch, BatchedDataset, DividedData, check_windows
from scalewise.datasets.token_index import Part, TokenIndex, check_sizes, check_sums, load_index


class ShardWindows(BatchedDataset):
    """Consecutive windows of tokens over several files; the target is the token after each.

    Windows neither overlap nor cross from one file to the next. ``every`` keeps one window in so
    many. The files are mapped, not read: the system keeps in memory what is used.
    """

    def __init__(self, files: Sequence[Path], length: int, every: int = 1) -> None:
        self._maps = [np.memmap(file, dtype="<u2", mode="r") for file in files]
        self._length = length
        self._every = every
        windows = [max(0, (len(tokens) - 1) // length) for tokens in self._maps]
        self._ends = list(accumulate(windows))

    def __len__(self) -> int:
        return -(-self._ends[-1] // self._every) if self._ends else 0

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Windows and targets at ``indices``, int64, each ``[samples, length]``."""
        rows = np.empty((len(indices), self._length + 1), dtype=np.int64)
        for row, index in zip(rows, indices, strict=True):
            row[:] = self._window(int(index) * self._every)
        tokens = torch.from_numpy(rows)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def _window(self, number: int) -> Any:
        file = bisect.bisect_right(self._ends, number)
        begin = (number - (self._ends[file - 1] if file else 0)) * self._length
        return self._maps[file][begin : begin + self._length + 1]


class TokenShards(DividedData):
    """Windows of ``sequence_length`` tokens of a folder that ``scalewise tokenize`` wrote.

    ``verify`` is what is checked before training: the ``sizes`` of the files, or their ``sums``
    too, for which every byte is read.
    """

    def __init__(
        self,
        path: str | None = None,
        corpus: str | None = None,
        sequence_length: int = 1024,
        max_validation_samples: int | None = 512,
        verify: Literal["sizes", "sums"] = "sizes",
    ) -> None:
        make = f"`scalewise tokenize {corpus or 'CORPUS'} --out FOLDER`"
        require("path", path, bool(path), f"a folder written by {make}, dataset.path=FOLDER")
        check_windows(sequence_length, max_validation_samples)
        require("verify", verify, verify in ("sizes", "sums"), "sizes or sums")
        self.path = Path(str(path))
        self.sequence_length = sequence_length
        self.max_validation_samples = max_validation_samples
        self.verify = verify
        self._corpus = corpus

    @cached_property
    def _index(self) -> TokenIndex:
        index = load_index(self.path, self._corpus)
        (check_sums if self.verify == "sums" else check_sizes)(self.path, index)
        return index

    def _windows(self, part: Part, limit: int | None) -> ShardWindows:
        files = [self.path / s.file for s in self._index.shards if s.part == part]
        every = 1
        if limit is not None:
            every = max(1, -(-len(ShardWindows(files, self.sequence_length)) // limit))
        return ShardWindows(files, self.sequence_length, every)

    @property
    def source(self) -> str:  # type: ignore[override]
        return self._index.source

    def divide(self) -> tuple[ShardWindows, ShardWindows]:
        train = self._windows("train", None)
        if not self._index.tokens("train"):
            raise DatasetError(
                f"dataset.path: found no shard yet in {self.path}: its `scalewise tokenize` ended "
                "before the first; run it again"
            )
        if not len(train):
            raise DatasetError(
                f"dataset.sequence_length: found {self.sequence_length}, longer than any shard of "
                f"{self.path}; allowed: less, or tokenize more text"
            )
        return train, self._windows("validation", self.max_validation_samples)

    def shape(self) -> dict[str, Any]:
        index = self._index
        return {
            "sequence_length": self.sequence_length,
            "vocabulary_size": index.vocabulary_size,
            "tokenizer": index.tokenizer,
            "train_tokens": index.tokens("train"),
            "validation_tokens": index.tokens("validation"),
            "complete": index.complete,
            "sha256": {shard.file: shard.sha256 for shard in index.shards},
        }
