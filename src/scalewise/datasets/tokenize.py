"""``scalewise tokenize``: text to a folder of token shards, to be stopped and resumed at will."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from scalewise.datasets.contract import DatasetError
from scalewise.datasets.corpora import CORPORA, TextStream, open_corpus, open_files
from scalewise.datasets.token_index import (
    INDEX,
    Part,
    Shard,
    TokenIndex,
    check_sizes,
    load_index,
    save_index,
)
from scalewise.datasets.tokenizers import Tokenizer, load_tokenizer

_UNITS = {"K": 10**3, "M": 10**6, "B": 10**9}


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
            stream_state=stream.state(),
            complete=complete,
        )
        save_index(self.folder, self.index)

    def _write(self, part: Part) -> Shard:
        data = np.concatenate(self._buffers[part])
        number = sum(shard.part == part for shard in self.index.shards)
        path = self.folder / f"{part}_{number:06d}.bin"
        data.tofile(path)
        self._buffers[part], self._sizes[part] = [], 0
        return Shard(path.name, part, len(data), hashlib.sha256(data.tobytes()).hexdigest())


def tokenize(
    stream: TextStream,
    tokenizer: Tokenizer,
    folder: Path,
    tokens: int | None = None,
    shard_tokens: int = 100_000_000,
    validation_every: int = 200,
) -> Iterator[TokenIndex]:
    """Write ``stream`` as shards into ``folder``, going on where an earlier run ended.

    Yields the index after every shard. ``tokens`` is how many training tokens are enough; None
    takes all. Raises :class:`DatasetError` where the folder holds something else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    index = _begin(folder, stream, tokenizer)
    if index.complete or (tokens is not None and index.tokens("train") >= tokens):
        yield index
        return
    if index.stream_state is not None:
        stream.resume(index.stream_state)
    writer = ShardWriter(folder, index, shard_tokens, validation_every)
    for text in stream:
        full = writer.add([*tokenizer.encode(text), tokenizer.end_of_text])
        if tokens is not None and writer.tokens >= tokens:
            # Enough, but not the end: a later run may want more.
            writer.flush(stream, complete=False)
            yield writer.index
            return
        if full:
            writer.flush(stream, complete=False)
            yield writer.index
    if not writer.tokens:
        raise DatasetError(f"{stream.source}: found no document; allowed: at least one")
    writer.flush(stream, complete=True)
    yield writer.index


def _begin(folder: Path, stream: TextStream, tokenizer: Tokenizer) -> TokenIndex:
    """The index of the folder, or a new one."""
    fresh = TokenIndex(
        stream.source, tokenizer.name, tokenizer.vocabulary_size, tokenizer.end_of_text
    )
    if not (folder / INDEX).exists():
        others = [
            path.name
            for path in folder.iterdir()
            if path.suffix != ".bin" and not path.name.startswith(f".{INDEX}.")
        ]
        if others:
            raise DatasetError(
                f"--out: found {others[0]!r} in {folder}; allowed: a new or empty folder, or one "
                "that an earlier run began"
            )
        save_index(folder, fresh)
        return fresh
    found = load_index(folder)
    for name in ("source", "tokenizer", "vocabulary_size"):
        if getattr(found, name) != getattr(fresh, name):
            raise DatasetError(
                f"--out: {folder} holds shards with {name} {getattr(found, name)!r}; allowed: "
                f"{getattr(fresh, name)!r}, or another folder"
            )
    check_sizes(folder, found)
    return found


def token_count(text: str) -> int:
    """``100M`` to 100,000,000. Raises ValueError."""
    unit = _UNITS.get(text[-1:].upper(), 1)
    count = float(text[:-1] if unit > 1 else text) * unit
    if count != int(count) or count < 1:
        raise ValueError(text)
    return int(count)


def main(argv: list[str]) -> int:
    """The subcommand. Returns the exit status: 2 for wrong input."""
    parser = argparse.ArgumentParser(
        prog="scalewise tokenize",
        description="Stream text into token shards that dataset=fineweb_edu and its like train on. "
        "Run it again to go on where it ended.",
    )
    parser.add_argument("corpus", nargs="?", help=f"{', '.join(CORPORA)}; or --files")
    parser.add_argument("--files", nargs="+", type=Path, help=".parquet, .jsonl, .json or .txt")
    parser.add_argument("--column", default="text", help="the column of --files that holds text")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the shards")
    parser.add_argument("--tokenizer", default="gpt2", help="bytes, gpt2 or a tokenizer.json")
    parser.add_argument("--tokens", type=token_count, help="training tokens, e.g. 100M; all")
    parser.add_argument("--shard-tokens", type=token_count, default=100_000_000)
    parser.add_argument("--validation-every", type=int, default=200, metavar="DOCUMENTS")
    given = parser.parse_args(argv)
    if (given.corpus is None) == (given.files is None):
        parser.error("give a corpus or --files, one of them")
    if given.validation_every < 2:
        parser.error(f"--validation-every: found {given.validation_every}; allowed: at least 2")
    try:
        tokenizer = load_tokenizer(given.tokenizer)
        stream = open_files(given.files, given.column) if given.files else open_corpus(given.corpus)
        started = time.monotonic()
        for index in tokenize(
            stream,
            tokenizer,
            given.out,
            given.tokens,
            given.shard_tokens,
            given.validation_every,
        ):
            sys.stdout.write(
                f"{index.tokens('train'):,} training and {index.tokens('validation'):,} validation "
                f"tokens of {index.documents:,} documents in {len(index.shards)} shards, "
                f"{time.monotonic() - started:.0f} s\n"
            )
            sys.stdout.flush()
    except DatasetError as error:
        sys.stderr.write(f"scalewise tokenize: {error}\n")
        return 2
    if not index.tokens("validation"):
        sys.stdout.write(
            "no document was held out for validation: there are fewer than --validation-every "
            f"{given.validation_every}\n"
        )
    sys.stdout.write(
        "train on it: python train.py model=gpt2_tiny model.vocabulary_size="
        f"{index.vocabulary_size} dataset=token_shards dataset.path={given.out}\n"
    )
    return 0
