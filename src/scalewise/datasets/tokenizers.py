"""From text to tokens that fit into 16 bits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scalewise.datasets.errors import DatasetError
from scalewise.datasets.token_index import LARGEST_VOCABULARY


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
