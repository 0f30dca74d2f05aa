"""Text to predict token by token: any file, the Python sources that every machine has, and folders
of tokens that ``scalewise tokenize`` wrote."""

from __future__ import annotations

import hashlib
import platform
import sysconfig
import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalewise.config import DatasetError, check_not_empty, require
from scalewise.datasets.contract import DividedData, TokenWindows, check_windows
from scalewise.datasets.labelled import check_split, split_indices
from scalewise.datasets.token_index import PARTS, Part, TokenIndex, load_index, token_file

VOCABULARY_SIZE = 256
"""A token is a byte."""
_NOT_OURS = frozenset({"site-packages", "dist-packages", "__pycache__"})
"""Folders below the standard library that hold what a user installed."""


class WindowedText(DividedData):
    """Windows of ``sequence_length`` tokens; the target is the next token."""

    def __init__(self, sequence_length: int, max_validation_samples: int | None) -> None:
        check_windows(sequence_length, max_validation_samples)
        self.sequence_length = sequence_length
        self.max_validation_samples = max_validation_samples

    def tokens(self, part: Part) -> Tensor | None:
        """The text to train on or to judge by; None where there is none."""
        raise NotImplementedError

    def divide(self) -> tuple[TokenWindows, TokenWindows | None]:
        train, validation = (self.tokens(part) for part in PARTS)
        if train is None:
            raise DatasetError(
                f"dataset.path: found no token to train on in {self.source}; allowed: text (an "
                "ended `scalewise tokenize` goes on when it is run again)"
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


class ByteText(WindowedText):
    """Text byte by byte."""

    def __init__(
        self,
        sequence_length: int,
        validation_fraction: float,
        max_validation_samples: int | None,
        seed: int,
    ) -> None:
        super().__init__(sequence_length, max_validation_samples)
        check_split(validation_fraction)
        self.validation_fraction = validation_fraction
        self.seed = seed

    def read(self) -> tuple[bytes, bytes]:
        """The texts to train on and to judge by; the second may be empty."""
        raise NotImplementedError

    @cached_property
    def _bytes(self) -> tuple[bytes, bytes]:
        return self.read()

    def tokens(self, part: Part) -> Tensor | None:
        text = self._bytes[PARTS.index(part)]
        return torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else None

    def shape(self) -> dict[str, Any]:
        """Sizes, and a hash of the data: another interpreter has another standard library."""
        return {
            "sequence_length": self.sequence_length,
            "vocabulary_size": VOCABULARY_SIZE,
            "train_bytes": len(self._bytes[0]),
            "validation_bytes": len(self._bytes[1]),
            "sha256": hashlib.sha256(b"".join(self._bytes)).hexdigest(),
        }


class Stdlib(ByteText):
    """Python sources: whole files are either trained on or held out, drawn with ``seed``.

    ``root`` is another folder of sources; null is the running interpreter's standard library.
    """

    def __init__(
        self,
        sequence_length: int = 256,
        validation_fraction: float = 0.1,
        max_validation_samples: int | None = 512,
        root: str | None = None,
        seed: int = 42,
    ) -> None:
        super().__init__(sequence_length, validation_fraction, max_validation_samples, seed)
        self.root = root
        # What the bytes are, without naming the machine's folders.
        self.source = (
            f"standard library of Python {platform.python_version()}"
            if root is None
            else f"Python sources in {Path(root).name}"
        )

    def read(self) -> tuple[bytes, bytes]:
        root = Path(self.root or sysconfig.get_path("stdlib"))
        files = library_files(root)
        if not files:
            raise DatasetError(
                f"dataset.root: found no .py file in {root}; allowed: a folder of Python sources "
                "(this interpreter may come without its sources: give dataset.root, or use "
                "dataset=text_file)"
            )
        texts = [_read(path, "root", "make it readable or remove it") + b"\0" for path in files]
        parts = split_indices(len(files), self.validation_fraction, self.seed)
        train, validation = (b"".join(texts[i] for i in sorted(part)) for part in parts)
        return train, validation


class TextFile(ByteText):
    """One file, whose end is held out: the text of a window is never in both parts."""

    def __init__(
        self,
        path: str | None = None,
        sequence_length: int = 256,
        validation_fraction: float = 0.1,
        max_validation_samples: int | None = 512,
        seed: int = 42,
    ) -> None:
        require("path", path, bool(path), "the path of a text file, dataset.path=FILE")
        super().__init__(sequence_length, validation_fraction, max_validation_samples, seed)
        self.path = Path(str(path))
        self.source = self.path.name

    def read(self) -> tuple[bytes, bytes]:
        data = _read(self.path, "path", "give a text file")
        check_not_empty(self.path, len(data))
        end = len(data) - round(len(data) * self.validation_fraction)
        return data[:end], data[end:]


class TokenFolder(WindowedText):
    """A folder that ``scalewise tokenize`` wrote.

    Its files are mapped, not read: the system keeps in memory what is used.
    """

    def __init__(
        self,
        path: str | None = None,
        corpus: str | None = None,
        sequence_length: int = 1024,
        max_validation_samples: int | None = 512,
    ) -> None:
        make = f"`scalewise tokenize {corpus or 'CORPUS'} --out FOLDER`"
        require("path", path, bool(path), f"a folder written by {make}, dataset.path=FOLDER")
        super().__init__(sequence_length, max_validation_samples)
        self.path = Path(str(path))
        self._corpus = corpus

    @cached_property
    def _index(self) -> TokenIndex:
        return load_index(self.path, self._corpus)

    @property
    def source(self) -> str:  # type: ignore[override]
        return self._index.source

    def tokens(self, part: Part) -> Tensor | None:
        count = self._index.tokens(part)
        if not count or (part == "validation" and count <= self.sequence_length):
            return None
        dtype = f"<i{self._index.token_bytes}"
        mapped = np.memmap(token_file(self.path, part), dtype, mode="r", shape=(count,))
        with warnings.catch_warnings():
            # A mapping to write to would count as memory, and could be larger than the host's.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.from_numpy(mapped)

    def shape(self) -> dict[str, Any]:
        index = self._index
        return {
            "sequence_length": self.sequence_length,
            "vocabulary_size": index.vocabulary_size,
            "tokenizer": index.tokenizer,
            "train_tokens": index.train_tokens,
            "validation_tokens": index.validation_tokens,
            "complete": index.complete,
            "sha256": dict(index.sha256),
        }


def library_files(root: Path) -> list[Path]:
    """Every ``.py`` file below ``root`` but installed packages, in the order of their paths."""
    files = [
        path
        for path in root.rglob("*.py")
        if not _NOT_OURS.intersection(path.relative_to(root).parts) and path.is_file()
    ]
    return sorted(files, key=lambda path: path.relative_to(root).as_posix())


def _read(path: Path, argument: str, remedy: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DatasetError(
            f"dataset.{argument}: {path} cannot be read: {error.strerror}; {remedy}"
        ) from error
