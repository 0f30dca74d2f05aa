"""What lies in a folder of token shards, and whether it is whole."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from scalewise.datasets.errors import DatasetError
from scalewise.ranges import require
from scalewise.validation import DataError, build

Part = Literal["train", "validation"]
INDEX = "index.json"
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

    def with_shard(self, *shards: Shard, **changes: Any) -> TokenIndex:
        return replace(self, shards=(*self.shards, *shards), **changes)


def save_index(folder: Path, index: TokenIndex) -> None:
    """Write the index at once: whoever reads sees the old one or the new one."""
    scratch = folder / f".{INDEX}.{os.getpid()}"
    with scratch.open("w", encoding="utf-8") as file:
        json.dump(asdict(index), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(folder / INDEX)


def load_index(folder: Path) -> TokenIndex:
    """Read the index. Raises :class:`DatasetError` where there is none or it is not one of ours."""
    path = folder / INDEX
    remedy = "write the folder anew with `scalewise tokenize`"
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DatasetError(
            f"dataset.path: {path} cannot be read: {error.strerror}; allowed: a folder written by "
            "`scalewise tokenize`"
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
