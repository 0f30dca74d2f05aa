"""A folder of token shards while it is written, by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from scalewise.datasets.corpora import TextStream
from scalewise.datasets.errors import DatasetError
from scalewise.datasets.token_index import INDEX, Part, Shard, TokenIndex, save_index

_LOCK = ".lock"


class ShardWriter:
    """Collects tokens and writes them as shards; the index is saved with every shard.

    A shard ends with the document that fills it. Every ``validation_every``-th document is held
    out. What was collected since the last shard is lost when the process dies, and is read again
    by the run that resumes.

    Args:
        folder: where shards and index go.
        index: what is there already.
        shard_tokens: tokens at which a shard is full.
        validation_every: one document in so many is for validation.
    """

    def __init__(
        self, folder: Path, index: TokenIndex, shard_tokens: int, validation_every: int
    ) -> None:
        self.folder = folder
        self.index = index
        self._shard_tokens = shard_tokens
        self._validation_every = validation_every
        self._documents = index.documents
        self._skipped_before = index.skipped_documents
        self._buffers: dict[Part, list[np.ndarray]] = {"train": [], "validation": []}
        self._sizes: dict[Part, int] = {"train": 0, "validation": 0}

    @property
    def tokens(self) -> int:
        """Training tokens written and collected."""
        return self.index.tokens("train") + self._sizes["train"]

    def add(self, tokens: list[int]) -> bool:
        """Take the tokens of the next document; whether a shard is full now."""
        part: Part = "train"
        if self._documents % self._validation_every == self._validation_every - 1:
            part = "validation"
        self._documents += 1
        self._buffers[part].append(np.array(tokens, dtype="<u2"))
        self._sizes[part] += len(tokens)
        return self._sizes["train"] >= self._shard_tokens

    def flush(self, stream: TextStream, complete: bool) -> None:
        """Write what was collected, each part as a shard, then the index."""
        shards = [self._write(part) for part in self._buffers if self._sizes[part]]
        self.index = self.index.with_shard(
            *shards,
            documents=self._documents,
            skipped_documents=self._skipped_before + stream.skipped.count,
            stream_state=stream.state(),
            complete=complete,
        )
        save_index(self.folder, self.index)

    def _write(self, part: Part) -> Shard:
        data = np.concatenate(self._buffers[part])
        number = sum(shard.part == part for shard in self.index.shards)
        path = self.folder / f"{part}_{number:06d}.bin"
        with path.open("wb") as file:
            data.tofile(file)
            file.flush()
            os.fsync(file.fileno())  # the index must not speak of what a power cut takes away
        self._buffers[part], self._sizes[part] = [], 0
        return Shard(path.name, part, len(data), hashlib.sha256(data.tobytes()).hexdigest())


def make_folder(folder: Path) -> None:
    """Raises :class:`DatasetError` for one that holds something else than shards."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatasetError(f"--out: {folder} cannot be made: {error.strerror}") from error
    ours = (INDEX, _LOCK)
    others = [
        path.name
        for path in folder.iterdir()
        if path.suffix != ".bin" and not path.name.startswith(f".{INDEX}.")
    ]
    if INDEX not in others and set(others) - set(ours):
        raise DatasetError(
            f"--out: found {min(set(others) - set(ours))!r} in {folder}; allowed: a new or empty "
            "folder, or one that an earlier run began"
        )


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder: two writers would put each other's shards into the index."""
    with (folder / _LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # gone with the process
        except BlockingIOError:
            raise DatasetError(
                f"--out: found another scalewise tokenize at work in {folder}; allowed: one at a "
                "time; wait for it, or give another folder"
            ) from None
        yield
