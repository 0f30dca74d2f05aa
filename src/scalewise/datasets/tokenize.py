"""``scalewise tokenize``: text to a folder of token shards, to be stopped and resumed at will."""

from __future__ import annotations

import hashlib
import math
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

from scalewise.config import DatasetError
from scalewise.datasets.corpora import TextStream, open_corpus, open_files
from scalewise.datasets.token_index import (
    INDEX,
    LARGEST_VOCABULARY,
    ShardWriter,
    TokenIndex,
    alone_in,
    check_sizes,
    load_index,
    make_folder,
    save_index,
)
from scalewise.host import plural


@dataclass(frozen=True)
class Tokenizer:
    """A way to cut text."""

    name: str
    vocabulary_size: int
    end_of_text: int
    """The token put after every document."""
    encode: Callable[[str], list[int]]


def load_tokenizer(name: str) -> Tokenizer:
    """A tokenizer by name: ``bytes``, ``gpt2``, or the path of a ``tokenizer.json``.

    Raises :class:`DatasetError` for one that is not there, or has more tokens than 16 bits tell
    apart.
    """
    if name == "bytes":
        return Tokenizer("bytes", 257, 256, lambda text: list(text.encode()))
    if name == "gpt2":
        return _gpt2()
    if name.endswith(".json"):
        return _from_file(Path(name))
    raise DatasetError(
        f"--tokenizer: found {name!r}; allowed: bytes, gpt2, or a file tokenizer.json"
    )


def _gpt2() -> Tokenizer:
    try:
        import tiktoken
    except ImportError as error:
        raise DatasetError(
            "--tokenizer: gpt2 needs the package tiktoken; pip install 'scalewise[hub]'"
        ) from error
    try:
        encoding = tiktoken.get_encoding("gpt2")
    except OSError as error:  # requests' errors are OSErrors too
        raise DatasetError(
            f"--tokenizer: gpt2's vocabulary could not be fetched ({error}); allowed: bytes, a "
            "file tokenizer.json, or a network (TIKTOKEN_CACHE_DIR keeps what was fetched once)"
        ) from error
    return Tokenizer("gpt2", encoding.n_vocab, encoding.eot_token, encoding.encode_ordinary)


def _from_file(path: Path) -> Tokenizer:
    try:
        from tokenizers import Tokenizer as FileTokenizer
    except ImportError as error:
        raise DatasetError(
            f"--tokenizer: {path} needs the package tokenizers; pip install 'scalewise[hub]'"
        ) from error
    if not path.is_file():
        raise DatasetError(f"--tokenizer: found no file {path}; allowed: a tokenizer.json")
    try:
        loaded = FileTokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise DatasetError(f"--tokenizer: {path} is no tokenizer.json ({error})") from error
    size = loaded.get_vocab_size()
    if size > LARGEST_VOCABULARY:
        raise DatasetError(
            f"--tokenizer: found {size} tokens in {path}; allowed: at most {LARGEST_VOCABULARY}, "
            "the shards hold 16 bits a token"
        )
    ends = (loaded.token_to_id(token) for token in ("<|endoftext|>", "</s>", "[SEP]", "<eos>"))
    end = next((number for number in ends if number is not None), None)
    if end is None:
        raise DatasetError(
            f"--tokenizer: {path} has no end-of-text token; allowed: one with <|endoftext|>, </s>, "
            "[SEP] or <eos>"
        )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    return Tokenizer(
        f"{path.name} ({digest})",
        size,
        end,
        lambda text: loaded.encode(text, add_special_tokens=False).ids,
    )


_UNITS = {"K": 10**3, "M": 10**6, "B": 10**9}


def tokenize(
    stream: TextStream,
    tokenizer: Tokenizer,
    folder: Path,
    tokens: int | None = None,
    shard_tokens: int = 100_000_000,
    validation_every: int = 200,
) -> Generator[TokenIndex]:
    """Write ``stream`` as shards into ``folder``, going on where an earlier run ended.

    Yields the index after every shard. ``tokens`` is how many training tokens are enough; None
    takes all. Raises :class:`DatasetError` where the folder holds something else, and while another
    process writes into it.
    """
    make_folder(folder)
    with alone_in(folder):
        index = _begin(folder, stream, tokenizer)
        if index.complete or (tokens is not None and index.tokens("train") >= tokens):
            yield index
            return
        if index.stream_state is not None:
            stream.resume(index.stream_state)
        writer = ShardWriter(folder, index, shard_tokens, validation_every)
        for text in stream:
            full = writer.add([*tokenizer.encode(text), tokenizer.end_of_text])
            # Enough is not the end: a later run may want more.
            enough = tokens is not None and writer.tokens >= tokens
            if full or enough:
                writer.flush(stream, complete=False)
                yield writer.index
            if enough:
                return
        if not writer.tokens:
            first = stream.skipped.first
            bad = f" but {stream.skipped.count} bad ones, the first: {first}" if first else ""
            raise DatasetError(f"{stream.source}: found no document{bad}; allowed: at least one")
        writer.flush(stream, complete=True)
        yield writer.index


def _begin(folder: Path, stream: TextStream, tokenizer: Tokenizer) -> TokenIndex:
    """The index of the folder, or a new one."""
    fresh = TokenIndex(
        stream.source, tokenizer.name, tokenizer.vocabulary_size, tokenizer.end_of_text
    )
    if not (folder / INDEX).exists():
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
    if not math.isfinite(count) or count != int(count) or count < 1:
        raise ValueError(text)
    return int(count)


def tokenize_text(
    source: str | list[Path],
    folder: Path,
    *,
    column: str,
    tokenizer_name: str,
    tokens: int | None,
    shard_tokens: int,
    validation_every: int,
    skip_bad: bool,
) -> None:
    """Tokenize a corpus of the hub, or files, and say with every shard how far it is.

    Args:
        column: the column of the files that holds text.
        tokens: training tokens that are enough; None takes all.
        skip_bad: count documents that cannot be read, instead of ending there.

    Raises :class:`DatasetError` for wrong input, and OSError, for a full disk among others.
    """
    tokenizer = load_tokenizer(tokenizer_name)
    if isinstance(source, str):
        stream = open_corpus(source, skip_bad)
    else:
        stream = open_files(source, column, skip_bad)
    started = time.monotonic()
    for index in tokenize(stream, tokenizer, folder, tokens, shard_tokens, validation_every):
        sys.stdout.write(
            f"{index.tokens('train'):,} training and {index.tokens('validation'):,} validation "
            f"tokens of {index.documents:,} {plural(index.documents, 'document')} "
            f"in {len(index.shards)} {plural(len(index.shards), 'shard')}, "
            f"{time.monotonic() - started:.0f} s\n"
        )
        sys.stdout.flush()
    if stream.skipped.count:
        sys.stdout.write(
            f"bad documents passed over: {stream.skipped.count}, the first of them "
            f"{stream.skipped.first}\n"
        )
    if not index.tokens("validation"):
        sys.stdout.write(
            "no document was held out for validation: there are fewer than --validation-every "
            f"{validation_every}\n"
        )
    sys.stdout.write(
        "train on it: python train.py model=gpt2_tiny model.vocabulary_size="
        f"{index.vocabulary_size} dataset=token_shards dataset.path={folder}\n"
    )
