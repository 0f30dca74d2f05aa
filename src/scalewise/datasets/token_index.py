"""What lies in a folder of token shards, and whether it is whole."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from scalewise.config import DatasetError, require
from scalewise.datasets.corpora import TextStream
from scalewise.host import FileLock
from scalewise.records import DataError, build

Part = Literal["train", "validation"]
INDEX = "index.json"
_LOCK = ".lock"
"""One process at a time writes a folder of shards."""
_VERSION = 1
_TOKEN_BYTES = 2
LARGEST_VOCABULARY = 2**16


@dataclass(frozen=True)
class Shard:
    """One file of tokens: little-endian uint16, nothing else."""

    file: str
    part: Part
    tokens: PositiveInt
    sha256: str

    def __post_init__(self) -> None:
        require("file", self.file, self.file == Path(self.file).name, "a name in its own folder")


@dataclass(frozen=True)
class TokenIndex:
    """The file ``index.json`` beside the shards."""

    source: str
    """Where the text is from: a data set's name on the hub, or files."""
    tokenizer: str
    vocabulary_size: Annotated[int, Field(ge=1, le=LARGEST_VOCABULARY)]
    end_of_text: NonNegativeInt
    """The token after every document."""
    shards: tuple[Shard, ...] = ()
    documents: NonNegativeInt = 0
    """Documents in the shards: where a resumed run goes on."""
    complete: bool = False
    """Whether the run that made them reached its end."""
    stream_state: Mapping[str, Any] | None = field(default=None, repr=False)
    """Where the source's own iterator stood; None where it keeps no such thing."""
    version: int = _VERSION
    skipped_documents: NonNegativeInt = 0
    """Passed over because they could not be read, as ``--skip-bad-documents`` allows."""

    def __post_init__(self) -> None:
        size = self.vocabulary_size
        end = self.end_of_text
        require("end_of_text", end, end < size, f"0 to {size - 1}, a token of the vocabulary")
        names = [shard.file for shard in self.shards]
        require("shards", names, len(set(names)) == len(names), "every file once")

    def tokens(self, part: Part) -> int:
        """Tokens of the shards of one part."""
        return sum(shard.tokens for shard in self.shards if shard.part == part)


def save_index(folder: Path, index: TokenIndex) -> None:
    """Write the index at once: whoever reads sees the old one or the new one."""
    scratch = folder / f".{INDEX}.{os.getpid()}"
    with scratch.open("w", encoding="utf-8") as file:
        json.dump(asdict(index), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(folder / INDEX)


def load_index(folder: Path, corpus: str | None = None) -> TokenIndex:
    """Read the index. Raises :class:`DatasetError` where there is none or it is not one of ours.

    ``corpus`` is the one that the folder should hold, for the command that makes it.
    """
    path = folder / INDEX
    remedy = "write the folder anew with `scalewise tokenize`"
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DatasetError(
            f"dataset.path: {path} cannot be read: {error.strerror}; allowed: a folder written by: "
            f"scalewise tokenize {corpus or 'CORPUS'} --out {shlex.quote(str(folder))}"
        ) from error
    except ValueError as error:
        raise DatasetError(f"{path}: found no JSON ({error}); {remedy}") from error
    version = plain.get("version") if isinstance(plain, dict) else None
    if version not in (None, _VERSION):
        raise DatasetError(f"{path}: found version {version}; allowed: {_VERSION}")
    try:
        return build(TokenIndex, plain)
    except DataError as error:
        raise DatasetError(f"{path}: {error}; {remedy}") from error


def check_sizes(folder: Path, index: TokenIndex) -> None:
    """Raise :class:`DatasetError` for the first shard that is missing or has another length."""
    for shard in index.shards:
        path = folder / shard.file
        found = path.stat().st_size if path.is_file() else None
        expected = shard.tokens * _TOKEN_BYTES
        if found != expected:
            what = "no such file" if found is None else f"{found} bytes"
            raise DatasetError(
                f"{path}: found {what}; allowed: {expected} bytes, by its index; write the folder "
                "anew with `scalewise tokenize`"
            )


def check_sums(folder: Path, index: TokenIndex) -> None:
    """Raise :class:`DatasetError` for the first shard whose content is not what was written."""
    check_sizes(folder, index)
    for shard in index.shards:
        with (folder / shard.file).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != shard.sha256:
            raise DatasetError(
                f"{folder / shard.file}: found sha256 {found[:12]}; allowed: {shard.sha256[:12]}, "
                "by its index; delete the folder and write it anew with `scalewise tokenize`"
            )


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
        self.index = replace(
            self.index,
            shards=(*self.index.shards, *shards),
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
    others = [
        path.name
        for path in folder.iterdir()
        if path.suffix != ".bin" and not path.name.startswith((_LOCK, f".{INDEX}."))
    ]
    if others and INDEX not in others:
        raise DatasetError(
            f"--out: found {min(others)!r} in {folder}; allowed: a new or empty folder, or one "
            "that an earlier run began"
        )


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder: two writers would put each other's shards into the index."""
    lock = FileLock(folder / _LOCK)
    if not lock.try_acquire():
        raise DatasetError(
            f"--out: found another scalewise tokenize at work in {folder}; allowed: one at a "
            "time; wait for it, or give another folder"
        )
    try:
        yield
    finally:
        lock.release()
