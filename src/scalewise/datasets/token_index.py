"""What lies in a folder of tokens, and whether it is whole. Torch-free."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import NonNegativeInt, PositiveInt

from scalewise.config import DatasetError, require
from scalewise.records import RecordError, load_json

Part = Literal["train", "validation"]
PARTS: tuple[Part, ...] = get_args(Part)
INDEX = "index.json"


@dataclass(frozen=True)
class TokenIndex:
    """The file ``index.json`` beside ``train.bin`` and ``validation.bin``.

    These hold the tokens of all documents in a row, little-endian, and nothing else. Behind the
    tokens of the index there may be more: of a run that goes on, or that was ended.
    """

    source: str
    """Where the text is from: a data set's name on the hub, or files."""
    tokenizer: str
    vocabulary_size: PositiveInt
    end_of_text: NonNegativeInt
    """The token after every document."""
    train_tokens: NonNegativeInt = 0
    validation_tokens: NonNegativeInt = 0
    documents: NonNegativeInt = 0
    empty_documents: NonNegativeInt = 0
    """Passed over: they hold no text."""
    complete: bool = False
    """Whether the end of the text was reached."""
    sha256: Mapping[Part, str] = field(default_factory=dict)
    """Of each file: the index tells other tokens, however many. Empty while a run goes on."""
    stream_state: Mapping[str, Any] | None = field(default=None, repr=False)
    """Where the text's own iterator stood, to go on there; None at the begin."""

    def __post_init__(self) -> None:
        size, end = self.vocabulary_size, self.end_of_text
        require("end_of_text", end, end < size, f"0 to {size - 1}, a token of the vocabulary")

    @property
    def token_bytes(self) -> int:
        """Two where they tell all tokens apart, unsigned; else four."""
        return 2 if self.vocabulary_size <= 2**16 else 4

    def tokens(self, part: Part) -> int:
        return self.train_tokens if part == "train" else self.validation_tokens


def token_file(folder: Path, part: Part) -> Path:
    """The file of one part."""
    return folder / f"{part}.bin"


def load_index(folder: Path, corpus: str | None = None) -> TokenIndex:
    """Read the index and compare the sizes of the files with it.

    ``corpus`` is the one that the folder should hold, for the command that makes it. Raises
    :class:`DatasetError` where there is no index, and where a file is missing or too short.
    """
    try:
        index = load_json(folder / INDEX, TokenIndex, Path.read_bytes)  # data may lie behind links
    except RecordError as error:
        raise DatasetError(
            f"dataset.path: {error}; allowed: a folder written by: "
            f"scalewise tokenize {corpus or 'CORPUS'} --out {shlex.quote(str(folder))}"
        ) from error
    for part in PARTS:
        path, needed = token_file(folder, part), index.tokens(part) * index.token_bytes
        found = path.stat().st_size if path.is_file() else 0
        if found < needed:
            raise DatasetError(
                f"{path}: found {found} bytes; allowed: {needed} or more, by its index; delete "
                "the folder and write it anew with `scalewise tokenize`"
            )
    return index
