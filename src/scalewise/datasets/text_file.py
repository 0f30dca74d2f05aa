"""Text to predict token by token: any file, the Python sources that every machine has, and folders
of tokens that ``scalewise tokenize`` wrote."""

from __future__ import annotations

import platform
import sysconfig
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from scalewise.config import BelowOne, DatasetError, require
from scalewise.datasets.contract import DividedData, TokenWindows
from scalewise.datasets.labelled import split_indices
from scalewise.datasets.tokenize import Part, TokenIndex, load_index, token_file

_NOT_OURS = frozenset({"site-packages", "dist-packages", "__pycache__"})
"""Folders below the standard library that hold what a user installed."""


class WindowedText(DividedData):
    """Windows of ``sequence_length`` tokens; the target is the next token.

    Raises :class:`DatasetError` where there are too few of them.
    """

    sizes = ("sequence_length", "vocabulary_size")
    sequence_length: int
    max_validation_samples: int | None

    @property
    def source(self) -> str:
        """Where the text is from, in words."""
        raise NotImplementedError

    def tokens(self) -> tuple[Tensor | None, Tensor | None]:
        """The text to train on and the one to judge by; None where there is none."""
        raise NotImplementedError

    def divide(self) -> tuple[TokenWindows, TokenWindows | None]:
        train, validation = self.tokens()
        if train is None:
            raise DatasetError(
                f"dataset.path: found no token to train on in {self.source}; allowed: text"
            )
        limit = self.max_validation_samples
        judged_by = None if validation is None else self._windows(validation, limit)
        return self._windows(train, None), judged_by

    def _windows(self, tokens: Tensor, limit: int | None) -> TokenWindows:
        length = self.sequence_length
        if len(tokens) <= length:
            raise DatasetError(
                f"dataset.sequence_length: found {length}; allowed: below {len(tokens)}, "
                f"the tokens in a part of {self.source}"
            )
        count = (len(tokens) - 1) // length
        return TokenWindows(tokens, length, 1 if limit is None else -(-count // limit))


def _byte_tokens(text: bytes) -> Tensor | None:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else None


@dataclass
class Stdlib(WindowedText):
    """Python sources: whole files are either trained on or held out, drawn with ``seed``.

    ``root`` is another folder of sources; null is the running interpreter's standard library.
    """

    vocabulary_size = 256
    sequence_length: PositiveInt = 256
    validation_fraction: BelowOne = 0.1
    max_validation_samples: PositiveInt | None = 512
    root: str | None = None
    seed: int = 42

    @property
    def source(self) -> str:
        if self.root is None:
            return f"the standard library of Python {platform.python_version()}"
        return f"Python sources in {Path(self.root).name}"

    def tokens(self) -> tuple[Tensor | None, Tensor | None]:
        root = Path(self.root or sysconfig.get_path("stdlib"))
        within = ((path.relative_to(root), path) for path in root.rglob("*.py") if path.is_file())
        ours = {own.as_posix(): p for own, p in within if not _NOT_OURS.intersection(own.parts)}
        files = [path for _, path in sorted(ours.items())]
        if not files:
            raise DatasetError(
                f"dataset.root: found no .py file in {root}; allowed: a folder of Python sources "
                "(this interpreter may come without its sources: give dataset.root, or use "
                "dataset=text_file)"
            )
        texts = [_read(path, "root", "make it readable or remove it") + b"\0" for path in files]
        parts = split_indices(len(files), self.validation_fraction, self.seed)
        train, validation = (_byte_tokens(b"".join(texts[i] for i in sorted(one))) for one in parts)
        return train, validation


@dataclass
class TextFile(WindowedText):
    """One file, whose end is held out: the text of a window is never in both parts."""

    vocabulary_size = 256
    path: str | None = None
    sequence_length: PositiveInt = 256
    validation_fraction: BelowOne = 0.1
    max_validation_samples: PositiveInt | None = 512
    seed: int = 42

    def __post_init__(self) -> None:
        require("path", self.path, bool(self.path), "the path of a text file, dataset.path=FILE")

    @property
    def source(self) -> str:
        return Path(str(self.path)).name

    def tokens(self) -> tuple[Tensor | None, Tensor | None]:
        path = Path(str(self.path))
        data = _read(path, "path", "give a text file")
        if not data:
            raise DatasetError(f"dataset.path: {path} is empty; give a text file that holds text")
        end = len(data) - round(len(data) * self.validation_fraction)
        return _byte_tokens(data[:end]), _byte_tokens(data[end:])


@dataclass
class TokenFolder(WindowedText):
    """A folder that ``scalewise tokenize`` wrote.

    Its files are mapped, not read: the system keeps in memory what is used.
    """

    path: str | None = None
    corpus: str | None = None
    sequence_length: PositiveInt = 1024
    max_validation_samples: PositiveInt | None = 512

    def __post_init__(self) -> None:
        make = f"`scalewise tokenize {self.corpus or 'CORPUS'} --out FOLDER`"
        allowed = f"a folder written by {make}, dataset.path=FOLDER"
        require("path", self.path, bool(self.path), allowed)

    @cached_property
    def _index(self) -> TokenIndex:
        return load_index(Path(str(self.path)), self.corpus)

    @property
    def source(self) -> str:
        return self._index.source

    @property
    def vocabulary_size(self) -> int:
        return self._index.vocabulary_size

    def tokens(self) -> tuple[Tensor | None, Tensor | None]:
        held_out = self._index.validation_tokens > self.sequence_length
        return self._mapped("train"), self._mapped("validation") if held_out else None

    def _mapped(self, part: Part) -> Tensor | None:
        count = self._index.tokens(part)
        if not count:
            return None
        path, dtype = token_file(Path(str(self.path)), part), f"<i{self._index.token_bytes}"
        mapped = np.memmap(path, dtype, mode="r", shape=(count,))
        with warnings.catch_warnings():
            # A mapping to write to would count as memory, and could be larger than the host's.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.from_numpy(mapped)


def _read(path: Path, argument: str, remedy: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DatasetError(
            f"dataset.{argument}: {path} cannot be read: {error.strerror}; {remedy}"
        ) from error
